//! Where a PostgreSQL database is: read from a URL, and told without its secrets.

use crate::lease::StoreError;
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

/// Reads a URL. No error repeats it: it may hold a password.
pub(super) fn parse(url: &str) -> Result<PgConnectOptions, StoreError> {
    let bad = |detail: String| StoreError::Unusable { store: "PostgreSQL".to_owned(), detail };
    let rest = url.strip_prefix("postgres://").or_else(|| url.strip_prefix("postgresql://"));
    let Some(rest) = rest else {
        return Err(
            bad("the URL must read postgres://user:password@host:port/database".to_owned()),
        );
    };
    // A `/`, `?` or `#` in a password ends the host too early, and the rest of the password would
    // be taken for something that may be shown.
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if rest.contains('@') && !authority.contains('@') {
        return Err(bad("the URL has an @ behind its host: percent-encode /, ?, # and @ in user \
                        and password"
            .to_owned()));
    }
    url.parse().map_err(|error: sqlx::Error| {
        let why = match error {
            sqlx::Error::Configuration(why) => why.to_string(),
            other => other.to_string(),
        };
        bad(format!(
            "the URL can't be read: {why}; it must read postgres://user:password@host:port/database"
        ))
    })
}

/// The database in messages: what an operator needs to find it.
pub(super) fn label(options: &PgConnectOptions, schema: &str) -> String {
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    let place = match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    };
    format!("PostgreSQL {database} at {place} (schema {schema})")
}

/// Without a line in the log for each statement, and with a name for those who watch the server.
/// `PgBouncer` refuses a client that asks for `extra_float_digits`, and the store reads no floats.
pub(super) fn quiet(options: &PgConnectOptions) -> PgConnectOptions {
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
            ("postgres://me:hunter2@host/db?sslmode=maybe", "URL"),
        ] {
            let error = parse(url).unwrap_err().to_string();
            assert!(error.contains(word), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn a_label_names_the_place_and_no_secret() {
        for (url, label_of_it) in [
            ("postgres://me:hunter2@h:1/db", "PostgreSQL db at h:1 (schema s)"),
            ("postgres://me:hunter2@h/db?host=/run/x", "PostgreSQL db at /run/x (schema s)"),
        ] {
            assert_eq!(label(&parse(url).unwrap(), "s"), label_of_it);
        }
    }
}
