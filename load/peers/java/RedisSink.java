package tidemark.peers;

import org.apache.flink.api.common.operators.ProcessingTimeService;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;

/** Flink's sink to Redis, for both of its jobs. All rows are written before a checkpoint is taken. */
record RedisSink(String url) implements Sink<String[]> {
    @Override
    public SinkWriter<String[]> createWriter(WriterInitContext context) {
        return new Writer(new Redis(url), context.getProcessingTimeService());
    }

    private record Writer(Redis redis, ProcessingTimeService clock) implements SinkWriter<String[]> {
        Writer {
            flushLater(redis, clock);
        }

        private static void flushLater(Redis redis, ProcessingTimeService clock) {
            clock.registerTimer(clock.getCurrentProcessingTime() + Redis.FLUSH_MS, at -> {
                redis.flush();
                flushLater(redis, clock);
            });
        }

        @Override
        public void write(String[] row, Context context) {
            redis.write(row);
        }

        @Override
        public void flush(boolean endOfInput) {
            redis.flush();
        }

        @Override
        public void close() {
            redis.close();
        }
    }
}
