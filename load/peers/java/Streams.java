package tidemark.peers;

import com.fasterxml.jackson.databind.*;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;

import java.io.IOException;
import java.time.Duration;
import java.util.Properties;
import java.util.function.BiFunction;

/**
 * Both works as two aggregations of one topology. Records have the device as their key: nothing is shuffled.
 *
 * State is in RocksDB, the default: a session store in memory looks through all live sessions for each record (Kafka 4.3).
 */
public final class Streams {
    private static final ObjectReader JSON = new ObjectMapper()
        .configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false).readerFor(Reading.class);
    private static final Duration DELAY = Duration.ofMillis(Settings.DELAY_MS);

    public static void main(String[] args) throws IOException {
        Settings settings = new Settings(args[0]);
        String url = settings.getProperty("redis");
        String prefix = settings.getProperty("prefix");
        Deserializer<Reading> readings = (topic, bytes) -> read(bytes);
        Serde<Statistics> statistics = Serdes.serdeFrom(
            (topic, value) -> value == null ? null : value.toBytes(), (topic, bytes) -> bytes == null ? null : Statistics.of(bytes));
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, Reading> stream = builder.stream(settings.getProperty("topic"),
            Consumed.with(Serdes.String(), Serdes.serdeFrom((topic, value) -> null, readings))
                .withTimestampExtractor((record, partition) -> ((Reading) record.value()).event_time));
        stream.filter((device, reading) -> reading.temperature != null)
            .groupByKey()
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(Settings.WINDOW_MS), DELAY))
            .aggregate(Statistics::new, (device, reading, values) -> values.add(reading.temperature),
                Materialized.with(Serdes.String(), statistics))
            .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()))
            .toStream()
            .process(() -> new Rows<>(url, (window, values) ->
                Redis.window(prefix, window.key(), window.window().start(), values)));
        stream.groupByKey()
            .windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMillis(Settings.GAP_MS), DELAY))
            .aggregate(() -> 0L, (device, reading, count) -> count + 1, (device, one, other) -> one + other,
                Materialized.with(Serdes.String(), Serdes.Long()))
            .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()))
            .toStream()
            .process(() -> new Rows<>(url, (session, count) -> Redis.session(
                prefix, session.key(), session.window().start(), session.window().end(), count)));
        Properties properties = new Properties();
        properties.putAll(settings.under("streams."));
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    private static Reading read(byte[] bytes) {
        try {
            return JSON.readValue(bytes);
        } catch (IOException error) {
            throw new SerializationException(error);
        }
    }

    /** Writes closed windows to Redis. */
    private static final class Rows<V> extends ContextualProcessor<Windowed<String>, V, Void, Void> {
        private final Redis redis;
        private final BiFunction<Windowed<String>, V, String[]> toRow;

        Rows(String url, BiFunction<Windowed<String>, V, String[]> toRow) {
            this.redis = new Redis(url);
            this.toRow = toRow;
        }

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            context.schedule(Duration.ofMillis(Redis.FLUSH_MS), PunctuationType.WALL_CLOCK_TIME, time -> redis.flush());
        }

        @Override
        public void process(Record<Windowed<String>, V> record) {
            redis.write(toRow.apply(record.key(), record.value()));
        }

        @Override
        public void close() {
            redis.flush();
            redis.close();
        }
    }
}
