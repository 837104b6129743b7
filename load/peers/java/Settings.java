package tidemark.peers;

import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;

/** The settings of a peer: a file of properties that the comparison writes (load/peers/engines.py). */
final class Settings extends Properties {
    static final long WINDOW_MS = 60_000;
    static final long GAP_MS = 30_000;
    static final long DELAY_MS = 10_000;

    Settings(String file) throws IOException {
        try (Reader reader = Files.newBufferedReader(Path.of(file))) {
            load(reader);
        }
    }

    /** Return the settings whose names begin with a prefix, without it. */
    Map<String, String> under(String prefix) {
        return stringPropertyNames().stream().filter(name -> name.startsWith(prefix))
            .collect(Collectors.toMap(name -> name.substring(prefix.length()), this::getProperty));
    }
}
