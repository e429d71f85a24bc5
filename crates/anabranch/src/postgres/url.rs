//! Parses PostgreSQL URLs, and formats addresses without their secrets.

use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

/// Hint for the expected form of a URL.
const FORM: &str = "it must have the form postgres://user:password@host:port/database";

/// Parses a URL. The error does not repeat the URL, because it may contain a password.
pub fn parse(url: &str) -> Result<PgConnectOptions, String> {
    let rest = url.strip_prefix("postgres://").or_else(|| url.strip_prefix("postgresql://"));
    let rest = rest.ok_or(FORM)?;
    // A `/`, `?` or `#` in a password would end the authority too early. The rest of the password
    // would then be parsed as a part that may be shown.
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if rest.contains('@') && !authority.contains('@') {
        return Err(
            "it has an @ after the host: percent-encode /, ?, # and @ in user and password"
                .to_owned(),
        );
    }
    url.parse().map_err(|error: sqlx::Error| match error {
        sqlx::Error::Configuration(why) => format!("{why}; {FORM}"),
        other => format!("{other}; {FORM}"),
    })
}

/// Returns database and host for messages, so that an operator can find the database.
pub fn label(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    let place = match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    };
    format!("PostgreSQL {database} at {place}")
}

/// Disables statement logging, and sets an application name for the operators of the server.
/// `PgBouncer` refuses a client that sets `extra_float_digits`, and the store reads no floats.
pub(crate) fn quiet(options: &PgConnectOptions) -> PgConnectOptions {
    let options = options.clone().disable_statement_logging().extra_float_digits(None);
    if options.get_application_name().is_some() {
        options
    } else {
        options.application_name("anabranch")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_url_is_refused_without_being_repeated() {
        for (url, word) in [
            ("", "postgres://"),
            ("mysql://me:hunter2@host/db", "postgres://"),
            ("postgres://me:hunter2@host:port/db", "port"),
            ("postgres://me:hunter2/x@host/db", "percent-encode"),
            ("postgres://me:12#hunter2@host/db", "percent-encode"),
            ("postgres://me:hunter2@host/db?sslmode=maybe", "ssl_mode"),
        ] {
            let error = parse(url).unwrap_err();
            assert!(error.contains(word), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn a_label_names_the_place_and_no_secret() {
        for (url, label_of_it) in [
            ("postgres://me:hunter2@h:1/db", "PostgreSQL db at h:1"),
            ("postgres://me:hunter2@h/db?host=/run/x", "PostgreSQL db at /run/x"),
        ] {
            assert_eq!(label(&parse(url).unwrap()), label_of_it);
        }
    }
}
