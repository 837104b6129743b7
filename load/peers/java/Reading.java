package tidemark.peers;

/** A reading, as its record of JSON has it. Other fields are not read. */
public class Reading {
    public String device_id;
    public long event_time;
    public Double temperature;
}
