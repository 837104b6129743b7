package tidemark.peers;

import redis.clients.jedis.Jedis;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Protocol.Command;

import java.net.URI;

/** Writes hashes that expire after a day, in pipelines. All peers write by it, under the keys and fields of Tidemark. */
final class Redis implements AutoCloseable {
    /** After so long a row leaves, although its pipeline is not full. */
    static final long FLUSH_MS = 100;
    private static final int ROWS = 1_000;
    private static final String RETAIN_MS = "86400000";

    private final Jedis client;
    private final Pipeline pipeline;
    private int rows;

    Redis(String url) {
        client = new Jedis(URI.create(url));
        pipeline = client.pipelined();
    }

    /** Write a row: a key, then names and values of fields in turns. */
    void write(String[] row) {
        pipeline.sendCommand(Command.HSET, row);
        pipeline.sendCommand(Command.PEXPIRE, row[0], RETAIN_MS);
        if (++rows == ROWS) {
            flush();
        }
    }

    /** Return when Redis has acknowledged all rows. */
    void flush() {
        if (rows > 0) {
            pipeline.sync();
            rows = 0;
        }
    }

    @Override
    public void close() {
        client.close();
    }

    static String[] window(String prefix, String device, long start, Statistics values) {
        return new String[] {
            prefix + ":window:device:temperature:" + device + ':' + start,
            "start", Long.toString(start), "end", Long.toString(start + Settings.WINDOW_MS),
            "count", Long.toString(values.count), "sum", Double.toString(values.sum),
            "mean", Double.toString(values.mean), "min", Double.toString(values.min),
            "max", Double.toString(values.max), "stddev", Double.toString(values.stddev())
        };
    }

    static String[] session(String prefix, String device, long start, long last, long count) {
        return new String[] {
            prefix + ":session:" + device + ':' + start,
            "start", Long.toString(start), "last", Long.toString(last), "count", Long.toString(count), "state", "closed"
        };
    }
}
