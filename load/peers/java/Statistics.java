package tidemark.peers;

import java.nio.ByteBuffer;

/** Count, sum, mean, minimum, maximum and standard deviation of the values of a window, by Welford's algorithm. */
public class Statistics {
    private static final int BYTES = 48;

    public long count;
    public double sum;
    public double mean;
    public double squares;
    public double min = Double.POSITIVE_INFINITY;
    public double max = Double.NEGATIVE_INFINITY;

    Statistics add(double value) {
        count++;
        sum += value;
        double before = value - mean;
        mean += before / count;
        squares += before * (value - mean);
        min = Math.min(min, value);
        max = Math.max(max, value);
        return this;
    }

    double stddev() {
        return Math.sqrt(squares / count);
    }

    byte[] toBytes() {
        return ByteBuffer.allocate(BYTES).putLong(count).putDouble(sum).putDouble(mean).putDouble(squares)
            .putDouble(min).putDouble(max).array();
    }

    static Statistics of(byte[] bytes) {
        ByteBuffer buffer = ByteBuffer.wrap(bytes);
        Statistics made = new Statistics();
        made.count = buffer.getLong();
        made.sum = buffer.getDouble();
        made.mean = buffer.getDouble();
        made.squares = buffer.getDouble();
        made.min = buffer.getDouble();
        made.max = buffer.getDouble();
        return made;
    }
}
