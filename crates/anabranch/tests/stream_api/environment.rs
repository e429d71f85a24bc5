//! Messages of `from_env` for an incomplete environment. Each case runs in a process of its own,
//! because the environment belongs to the process.

use anabranch::stream::aws;
use std::process::Command;

const CHILD: &str = "ANABRANCH_TEST_CHILD";

/// Runs in the child only: prints the result of the setup.
#[tokio::test]
async fn child() {
    if std::env::var(CHILD).is_ok() {
        match aws::from_env().await {
            Ok(_) => println!("said: ready"),
            Err(error) => println!("said: {error}"),
        }
    }
}

fn said(variables: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "environment::child", "--nocapture"])
        .env_clear()
        .env("HOME", "nowhere")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env(CHILD, "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find_map(|line| line.split_once("said: ")).map_or(text.clone(), |at| at.1.into())
}

#[test]
fn what_is_missing_is_named_with_the_way_out() {
    let keys = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")];
    let region = ("AWS_REGION", "eu-central-1");
    assert!(said(&keys).contains("set AWS_REGION"), "{}", said(&keys));
    let nobody = said(&[region]);
    assert!(nobody.contains("set AWS_ACCESS_KEY_ID"), "{nobody}");
    assert_eq!(said(&[region, keys[0], keys[1]]), "ready");
}
