//! Shell quoting for suggested commands.

use std::fmt;

/// Quotes a word if necessary.
pub(crate) fn shell_word(word: impl fmt::Display) -> String {
    let word = word.to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word;
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_comes_through_a_shell_as_it_is() {
        for (word, expected) in [
            ("orders", "orders"),
            ("sqlite:a/b.db", "sqlite:a/b.db"),
            ("", "''"),
            ("two words", "'two words'"),
            ("it's $HOME", "'it'\\''s $HOME'"),
        ] {
            assert_eq!(shell_word(word), expected);
            let echoed = std::process::Command::new("sh")
                .args(["-c", &format!("printf %s {expected}")])
                .output()
                .expect("there is a shell");
            assert_eq!(String::from_utf8_lossy(&echoed.stdout), word);
        }
    }
}
