# Compiles and runs a class with records, threads, a zoned time and a jar.
# has: javac java jar
# apt: default-jdk-headless

cat > Hello.java <<'END'
import java.nio.file.*;
import java.time.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;

public class Hello {
    record Point(int x, int y) {}

    public static void main(String[] args) throws Exception {
        System.out.println(new Point(1, 2));
        System.out.println(IntStream.rangeClosed(1, 10).sum());
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<Integer>> all = new ArrayList<>();
        for (int i = 0; i < 8; i++) { int n = i; all.add(pool.submit(() -> n * n)); }
        int sum = 0;
        for (Future<Integer> one : all) sum += one.get();
        pool.shutdown();
        System.out.println(sum);
        System.out.println(ZonedDateTime.of(2024, 7, 1, 12, 0, 0, 0, ZoneId.of("UTC"))
            .withZoneSameInstant(ZoneId.of("Asia/Tokyo")));
        Files.writeString(Path.of("out.txt"), String.join(",", args) + "\n");
        System.out.println(java.security.Security.getProviders().length > 3);
        System.err.println("done");
    }
}
END
javac Hello.java || exit
java Hello one 'two words'
jar --create --file hello.jar --main-class Hello *.class && java -jar hello.jar && rm hello.jar
