package tidemark.peers;

import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/** Runs the setting `sql`: a table, and one query whose rows are the rows for Redis. */
public final class FlinkSql {
    public static void main(String[] args) throws Exception {
        Settings settings = new Settings(args[0]);
        StreamExecutionEnvironment environment =
            StreamExecutionEnvironment.getExecutionEnvironment(Configuration.fromMap(settings.under("flink.")));
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        String[] statements = settings.getProperty("sql").split("\n\n");
        tables.executeSql(statements[0]);
        Table rows = tables.sqlQuery(statements[1]);
        tables.toDataStream(rows)
            .map(row -> row.<String[]>getFieldAs(0)).returns(Types.OBJECT_ARRAY(Types.STRING))
            .sinkTo(new RedisSink(settings.getProperty("redis")));
        environment.execute("peer");
    }
}
