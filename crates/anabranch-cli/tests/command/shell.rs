//! Tests of help, completions and the manual page, also into a pipe that closes.

use crate::stage::program;
use std::process::{Command, Stdio};

#[test]
fn completions_and_manual_name_every_command() {
    for words in
        [&["completions", "bash"][..], &["completions", "zsh"], &["completions", "fish"], &["man"]]
    {
        let output = program().args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        for command in ["put", "consume", "local", "demo"] {
            assert!(text.contains(command), "{words:?} lack {command}");
        }
        assert!(!text.contains("demo-worker") || words[0] == "completions", "{words:?}");
    }
}

#[test]
fn a_pipe_that_closes_is_no_panic() {
    for words in ["--help", "put --help", "man"] {
        let script = format!("\"$0\" {words} | head -c 1 > /dev/null; echo ${{PIPESTATUS[0]}}");
        let mut command = Command::new("bash");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_anabranch")]).stderr(Stdio::piped());
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{words}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0", "{words}");
    }
}
