package tidemark.peers;

import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.*;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.formats.json.JsonDeserializationSchema;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.DeserializationFeature;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;
import org.apache.flink.util.jackson.JacksonMapperFactory;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Properties;

/** Both works in one process function, behind one shuffle: what a Flink programmer writes who wants the most of it. */
public final class FlinkStream {
    public static void main(String[] args) throws Exception {
        Settings settings = new Settings(args[0]);
        Properties consumer = new Properties();
        consumer.putAll(settings.under("consumer."));
        KafkaSource<Reading> source = KafkaSource.<Reading>builder()
            .setTopics(settings.getProperty("topic"))
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setProperties(consumer)
            .setValueOnlyDeserializer(new JsonDeserializationSchema<>(Reading.class, () -> JacksonMapperFactory
                .createObjectMapper().configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false)))
            .build();
        WatermarkStrategy<Reading> watermark = WatermarkStrategy
            .<Reading>forBoundedOutOfOrderness(Duration.ofMillis(Settings.DELAY_MS))
            .withTimestampAssigner((reading, time) -> reading.event_time);
        StreamExecutionEnvironment environment =
            StreamExecutionEnvironment.getExecutionEnvironment(Configuration.fromMap(settings.under("flink.")));
        environment.fromSource(source, watermark, "readings")
            .keyBy(reading -> reading.device_id)
            .process(new Works(settings.getProperty("prefix")))
            .sinkTo(new RedisSink(settings.getProperty("redis")));
        environment.execute("peer");
    }

    /** An open session, and the time of the one timer that it has. */
    public static class Session {
        public long start = Long.MAX_VALUE;
        public long last;
        public long count;
        public long timer;

        void add(long start, long last, long count, long timer) {
            this.start = Math.min(this.start, start);
            this.last = Math.max(this.last, last);
            this.count += count;
            this.timer = timer;
        }
    }

    private static final class Works extends KeyedProcessFunction<String, Reading, String[]> {
        private final String prefix;
        private transient MapState<Long, Statistics> windows;
        private transient ValueState<List<Session>> sessions;

        Works(String prefix) {
            this.prefix = prefix;
        }

        @Override
        public void open(OpenContext context) {
            windows = getRuntimeContext().getMapState(
                new MapStateDescriptor<>("windows", Types.LONG, Types.POJO(Statistics.class)));
            sessions = getRuntimeContext().getState(
                new ValueStateDescriptor<>("sessions", Types.LIST(Types.POJO(Session.class))));
        }

        @Override
        public void processElement(Reading reading, Context context, Collector<String[]> rows) throws Exception {
            long time = reading.event_time;
            if (time <= context.timerService().currentWatermark()) {
                return;
            }
            if (reading.temperature != null) {
                long start = time - time % Settings.WINDOW_MS;
                Statistics window = windows.get(start);
                if (window == null) {
                    window = new Statistics();
                    context.timerService().registerEventTimeTimer(start + Settings.WINDOW_MS - 1);
                }
                windows.put(start, window.add(reading.temperature));
            }
            Session joined = new Session();
            joined.add(time, time, 1, 0);
            List<Session> open = sessions.value() == null ? new ArrayList<>() : sessions.value();
            for (Iterator<Session> each = open.iterator(); each.hasNext();) {
                Session other = each.next();
                if (time >= other.start - Settings.GAP_MS && time <= other.last + Settings.GAP_MS) {
                    joined.add(other.start, other.last, other.count, other.timer);
                    each.remove();
                }
            }
            if (joined.timer == 0) {
                joined.timer = time + Settings.GAP_MS;
                context.timerService().registerEventTimeTimer(joined.timer);
            }
            open.add(joined);
            sessions.update(open);
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<String[]> rows) throws Exception {
            String device = context.getCurrentKey();
            long start = time + 1 - Settings.WINDOW_MS;
            Statistics window = start % Settings.WINDOW_MS == 0 ? windows.get(start) : null;
            if (window != null) {
                rows.collect(Redis.window(prefix, device, start, window));
                windows.remove(start);
            }
            List<Session> open = sessions.value();
            for (Iterator<Session> each = open.iterator(); each.hasNext();) {
                Session session = each.next();
                if (session.timer != time) {
                    continue;
                }
                session.timer = session.last + Settings.GAP_MS;
                if (session.timer <= time) {
                    rows.collect(Redis.session(prefix, device, session.start, session.last, session.count));
                    each.remove();
                } else {
                    context.timerService().registerEventTimeTimer(session.timer);
                }
            }
            sessions.update(open);
        }
    }
}
