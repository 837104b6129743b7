CREATE TABLE readings (
  device_id STRING,
  event_time BIGINT,
  temperature DOUBLE,
  at_time AS TO_TIMESTAMP_LTZ(event_time, 3),
  WATERMARK FOR at_time AS at_time - INTERVAL '10' SECOND
) WITH (
  'connector' = 'kafka', 'topic' = '$topic', 'scan.startup.mode' = 'earliest-offset', 'format' = 'json',
  $consumer
)

-- A row is a key, then names and values in turns. VAR_POP is the difference of two large sums, which may fall below 0.
SELECT ARRAY[
  CONCAT('$prefix:window:device:temperature:', device_id, ':', CAST(first AS STRING)),
  'start', CAST(first AS STRING), 'end', CAST(first + 60000 AS STRING), 'count', CAST(n AS STRING), 'sum', CAST(total AS STRING),
  'mean', CAST(mean AS STRING), 'min', CAST(low AS STRING), 'max', CAST(high AS STRING), 'stddev', CAST(deviation AS STRING)
]
FROM (
  SELECT
    device_id, MIN(event_time) - MOD(MIN(event_time), 60000) AS first, COUNT(temperature) AS n, SUM(temperature) AS total,
    AVG(temperature) AS mean, MIN(temperature) AS low, MAX(temperature) AS high, SQRT(GREATEST(VAR_POP(temperature), 0E0)) AS deviation
  FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(at_time), INTERVAL '1' MINUTE))
  WHERE temperature IS NOT NULL
  GROUP BY device_id, window_start, window_end
)
UNION ALL
SELECT ARRAY[
  CONCAT('$prefix:session:', device_id, ':', CAST(first AS STRING)),
  'start', CAST(first AS STRING), 'last', CAST(final AS STRING), 'count', CAST(n AS STRING), 'state', 'closed'
]
FROM (
  SELECT device_id, MIN(event_time) AS first, MAX(event_time) AS final, COUNT(*) AS n
  FROM TABLE(SESSION(TABLE readings PARTITION BY device_id, DESCRIPTOR(at_time), INTERVAL '30' SECOND))
  GROUP BY device_id, window_start, window_end
)
