//! A ratchet on prose that does not name its subject, in comments and documents.

use super::sources::Source;

/// Offending lines allowed in comments of `.rs` files. Lower it when lines go; never raise it.
const COMMENT_LIMIT: usize = 20;
/// Offending lines allowed in `.md` files.
const DOCUMENT_LIMIT: usize = 5;

/// Words with which no doc comment and no paragraph begins.
const OPENINGS: [&str; 9] =
    ["What", "Who", "How", "Whether", "Whoever", "Where", "Those", "Nobody", "So many"];
/// Words to avoid anywhere, in any case.
const WORDS: [&str; 6] = ["nobody", "somebody", "whoever", "anew", "is told", "so many"];

/// Fails when more comments offend than allowed.
pub(crate) fn check_comments(sources: &[Source]) -> Result<(), String> {
    at_most(COMMENT_LIMIT, &sources.iter().flat_map(bad_comments).collect::<Vec<_>>())
}

/// Fails when more lines of documents offend than allowed.
pub(crate) fn check_documents(documents: &[Source]) -> Result<(), String> {
    at_most(DOCUMENT_LIMIT, &documents.iter().flat_map(bad_prose).collect::<Vec<_>>())
}

fn at_most(limit: usize, offending: &[String]) -> Result<(), String> {
    if offending.len() <= limit {
        return Ok(());
    }
    let lines = offending.join("\n");
    let count = offending.len();
    Err(format!("{count} lines, at most {limit}: begin with the noun or the verb\n{lines}"))
}

/// Returns the lines whose comment offends.
fn bad_comments(source: &Source) -> Vec<String> {
    let mut bad = Vec::new();
    let mut above = None;
    for (i, line) in source.text.lines().map(str::trim).enumerate() {
        let doc = ["///", "//!"].into_iter().find(|mark| line.starts_with(mark));
        let begins =
            doc.filter(|_| doc != above).is_some_and(|mark| is_opening(&line[mark.len()..]));
        if begins || comment(line).is_some_and(has_word) {
            bad.push(format!("{}:{}: {line}", source.path, i + 1));
        }
        above = doc;
    }
    bad
}

/// Returns the lines of a document that offend, outside code blocks.
fn bad_prose(document: &Source) -> Vec<String> {
    let mut bad = Vec::new();
    let (mut in_block, mut above) = (false, "");
    for (i, line) in document.text.lines().map(str::trim).enumerate() {
        if line.starts_with("```") {
            in_block = !in_block;
        } else if !in_block && (has_word(line) || above.is_empty() && is_opening(line)) {
            bad.push(format!("{}:{}: {line}", document.path, i + 1));
        }
        above = line;
    }
    bad
}

/// Returns the comment of a line: the whole line, or the end after ` //`.
fn comment(line: &str) -> Option<&str> {
    if line.starts_with("//") { Some(line) } else { Some(&line[line.find(" // ")?..]) }
}

fn is_opening(text: &str) -> bool {
    let text = text.trim_start();
    OPENINGS
        .iter()
        .any(|word| text.strip_prefix(word).is_some_and(|rest| !in_word(rest.chars().next())))
}

fn has_word(text: &str) -> bool {
    let text = text.to_lowercase();
    WORDS.iter().any(|word| {
        text.match_indices(word).any(|(at, _)| {
            let before = text[..at].chars().next_back();
            let behind = text[at + word.len()..].chars().next();
            !in_word(before) && !in_word(behind)
        })
    })
}

fn in_word(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(find: fn(&Source) -> Vec<String>, text: &str, lines: &[usize]) {
        let found = find(&Source { path: "a".into(), text: text.into() });
        let expected: Vec<String> = lines.iter().map(|line| format!("a:{line}: ")).collect();
        assert_eq!(found.len(), expected.len(), "{text}: {found:?}");
        assert!(found.iter().zip(&expected).all(|(f, e)| f.starts_with(e)), "{text}: {found:?}");
    }

    #[test]
    fn doc_comments_that_do_not_begin_with_their_subject_are_found() {
        check(bad_comments, "//! What it is.\nfn f() {}", &[1]);
        check(bad_comments, "/// Returns it.\n/// Where it is.\n", &[]);
        check(bad_comments, "/// One.\na: u8,\n    /// Those.\n", &[3]);
        check(bad_comments, "//! One.\n/// Whether it is.\n", &[2]);
        check(bad_comments, "/// Whatever.\n", &[]);
        check(bad_comments, "// What follows is sorted.\n", &[]);
    }

    #[test]
    fn words_to_avoid_are_found_in_comments_only() {
        check(bad_comments, "//! One.\n// Here Nobody waits.\n", &[2]);
        check(bad_comments, "let a = 1; \x2f/ begins anew\n", &[1]);
        check(bad_comments, "let a = \"nobody\";\nlet b = so_many;\n", &[]);
        check(bad_comments, "// renewed, also many\n", &[]);
        check(bad_comments, "// he is told, and so many\n", &[1]);
    }

    #[test]
    fn documents_are_read_outside_code_blocks() {
        check(bad_prose, "# How to\n\nHow it works.\nWhere it is.\n", &[3]);
        check(bad_prose, "It is told\n```\nnobody\n```\n| somebody |\n", &[1, 5]);
    }

    #[test]
    fn a_count_above_the_limit_fails_with_the_lines() {
        let lines = ["a:1: x".to_owned(), "a:2: y".to_owned()];
        assert_eq!(at_most(2, &lines), Ok(()));
        let error = at_most(1, &lines).unwrap_err();
        assert!(error.starts_with("2 lines, at most 1") && error.ends_with("a:1: x\na:2: y"));
    }
}
