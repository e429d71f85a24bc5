import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;

/** Marks a promise of {@link Checks}. Promises run in the order of their numbers. */
@Retention(RetentionPolicy.RUNTIME)
@interface Check {
    int value();
}
