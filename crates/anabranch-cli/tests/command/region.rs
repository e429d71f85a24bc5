//! Tests of the signing region for local endpoints.

use crate::stage::{program, run};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use tempfile::TempDir;

/// Returns the region for which the first call of a put is signed.
fn signed_for(options: &[&str], variables: &[(&str, &str)]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let mut command = program();
    command.args(["put", "orders", "--endpoint", &endpoint]).args(options);
    command.envs(variables.iter().copied());
    let ran = std::thread::spawn(move || run(command, ""));
    let (mut socket, _) = listener.accept().unwrap();
    let lines = BufReader::new(socket.try_clone().unwrap()).lines();
    let lines: Vec<String> = lines.map_while(Result::ok).take_while(|l| !l.is_empty()).collect();
    let denied = "HTTP/1.1 400 X\r\nx-amzn-errortype: ResourceNotFoundException\r\n\
                  content-length: 0\r\nconnection: close\r\n\r\n";
    drop(listener);
    let _ = socket.write_all(denied.as_bytes());
    drop(socket);
    ran.join().unwrap();
    let credential = lines.iter().find_map(|line| line.split_once("Credential=")).unwrap().1;
    credential.split('/').nth(2).unwrap().to_owned()
}

#[test]
fn an_endpoint_on_this_machine_takes_the_region_that_is_there_and_asks_for_none() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("config");
    let text = "[default]\nregion = eu-west-1\n[profile other]\nregion = eu-west-2\n\
                [profile bare]\noutput = json\n";
    std::fs::write(&file, text).unwrap();
    let file = ("AWS_CONFIG_FILE", file.to_str().unwrap());
    let (id, secret) = (("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret"));
    let variable = ("AWS_REGION", "ap-south-1");
    for (options, variables, region) in [
        (&[][..], &[][..], "us-east-1"),
        (&[], &[id, secret], "us-east-1"),
        (&[], &[file], "eu-west-1"),
        (&[], &[file, id, secret], "eu-west-1"),
        (&[], &[file, id, secret, ("AWS_PROFILE", "other")], "eu-west-2"),
        (&[], &[file, id, secret, ("AWS_PROFILE", "bare")], "us-east-1"),
        (&[], &[file, id, secret, variable], "ap-south-1"),
        (&["--region", "eu-north-1"], &[file, id, secret, variable], "eu-north-1"),
    ] {
        assert_eq!(signed_for(options, variables), region, "{options:?} {variables:?}");
    }
}
