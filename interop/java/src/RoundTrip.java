import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * A round trip through the AWS SDK for Java v2 at its default settings: Netty, HTTP/2 without TLS,
 * CBOR (and JSON for SubscribeToShard).
 *
 * <p>Runs every check of {@link Checks}, or those named as arguments. Prints {@code ok NAME} or
 * {@code not ok NAME: WHY}. The endpoint comes from AWS_ENDPOINT_URL.
 */
public final class RoundTrip {
    private static final int CHECK_SECONDS = 25;

    public static void main(String[] names) {
        List<String> wanted = List.of(names);
        int failures = 0;
        for (Method check : checks()) {
            if (!wanted.isEmpty() && !wanted.contains(check.getName())) {
                continue;
            }
            Throwable failure = run(check);
            if (failure == null) {
                System.out.println("ok " + check.getName());
            } else {
                failures++;
                System.out.println("not ok " + check.getName() + ": " + why(failure));
            }
        }
        // A subscription of a failed check may still be open; it must not keep the program alive.
        System.exit(failures > 0 ? 1 : 0);
    }

    private static List<Method> checks() {
        return Arrays.stream(Checks.class.getDeclaredMethods())
                .filter(method -> method.isAnnotationPresent(Check.class))
                .sorted(Comparator.comparing(method -> method.getAnnotation(Check.class).value()))
                .toList();
    }

    private static Throwable run(Method check) {
        var thread = Executors.newSingleThreadExecutor();
        try {
            thread.submit(() -> check.invoke(null)).get(CHECK_SECONDS, TimeUnit.SECONDS);
            return null;
        } catch (TimeoutException late) {
            return new AssertionError("not done within " + CHECK_SECONDS + " s");
        } catch (ExecutionException failed) {
            Throwable cause = failed.getCause();
            return cause instanceof InvocationTargetException ? cause.getCause() : cause;
        } catch (InterruptedException stopped) {
            return stopped;
        } finally {
            thread.shutdownNow();
        }
    }

    private static String why(Throwable failure) {
        String line = Arrays.stream(failure.getStackTrace())
                .filter(frame -> frame.getClassName().startsWith("Checks"))
                .map(frame -> "line " + frame.getLineNumber() + ": ")
                .findFirst()
                .orElse("");
        String text = failure.toString().replaceAll("\\s+", " ");
        return line + text.substring(0, Math.min(400, text.length()));
    }
}
