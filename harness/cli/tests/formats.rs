// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats for programs of others, as the command line prints them, of stored runs.

use crate::command::{repository, said, tramplab};
use serde_json::Value;
use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Output, Stdio},
};
use tramplab_kernel::series;
use tramplab_testdata::schema::errors;

fn stored() -> PathBuf {
    repository().join("harness/testdata/lbr-helpers.json")
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn prints_a_run_in_each_format() {
    for (format, expected) in [
        ("benchstat", "\nBenchmarkLbr_waste.fexit.any 1 12 records\n"),
        ("github-benchmark", "\"name\": \"x86_64/6.12-source/tcg/lbr_waste.fexit.any\""),
        ("bencher", "\"x86_64/6.12-source/tcg/lbr_waste.fexit.any\": {"),
        ("brstack", "/__static_call_return0+0x0/-/-/-/0/CALL/- "),
        ("timeline", "\"traceEvents\": ["),
    ] {
        let output = tramplab().arg("report").arg(stored()).args(["--format", format]).output();
        let text = printed(&output.unwrap());
        assert!(text.contains(expected), "{format}: {text}");
    }
    for option in ["--what-if", "--lines"] {
        let mut command = tramplab();
        let output =
            command.arg("report").arg(stored()).args(["--format", "html", option]).output();
        assert_eq!(output.unwrap().status.code(), Some(2), "{option}");
    }
    let history = tramplab()
        .args(["history", "--format", "openmetrics", "--runs"])
        .arg(stored())
        .output()
        .unwrap();
    let text = printed(&history);
    assert!(text.ends_with("# EOF\n") && text.contains("metric=\"lbr_waste.fexit.any\""), "{text}");
}

#[test]
fn comparisons_and_the_cache_follow_their_schemas() {
    let cache = tempfile::tempdir().unwrap();
    let compare = ["--base-kernel", "6.12-source+lbr-helpers.0", "--head-kernel", "6.12-source"];
    let mut comparison = tramplab();
    comparison.arg("compare").args([stored(), stored()]).args(compare);
    let mut entries = tramplab();
    entries.args(["cache", "ls"]).env("TRAMPLAB_CACHE", cache.path());
    for (name, mut command, key) in
        [("comparison", comparison, "metrics"), ("cache", entries, "entries")]
    {
        let output = command.args(["--format", "json"]).output().unwrap();
        let document: Value = serde_json::from_str(&printed(&output)).unwrap();
        let path = repository().join(format!("docs/{name}.schema.json"));
        let schema = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(errors(&schema, &document), [""; 0], "{name}");
        assert!(document[key].is_array(), "{document}");
    }
}

/// As b4 runs its checks: the mail on standard input, JSON on standard output.
#[test]
fn answers_for_a_mail_on_standard_input() {
    let mails = repository().join("harness/kernel/src/series/testdata/base64.eml");
    let mail = fs::read(&mails).unwrap();
    let ids = series::ids(&mail, "-").unwrap();
    assert!(ids.message_id.is_some() && ids.patch_id.is_some(), "{ids:?}");
    let mut run = tramplab_testdata::series();
    run.series[0].ids = vec![ids, Default::default()];
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("run")).unwrap();
    fs::write(folder.path().join("run/run.json"), serde_json::to_vec(&run).unwrap()).unwrap();
    let ask = |mail: &[u8]| -> Value {
        let mut child = tramplab()
            .arg("report")
            .arg(folder.path())
            .args(["--mail", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(mail).unwrap();
        serde_json::from_str(&printed(&child.wait_with_output().unwrap())).unwrap()
    };
    let checks = ask(&mail);
    assert_eq!(checks[0]["status"], "pass", "{checks}");
    let details = checks[0]["details"].as_str().unwrap();
    assert!(
        details.contains("6.12-source+lbr-helpers.0 -> 6.12-source+lbr-helpers.1"),
        "{details}"
    );
    let other = b"Message-ID: <other@host>\nSubject: [PATCH] x\n\nno diff\n";
    assert_eq!(ask(other), Value::Array(vec![]));
    let missing = tramplab().arg("report").arg(folder.path()).args(["--mail", "/none"]).output();
    let missing = missing.unwrap();
    assert_eq!(missing.status.code(), Some(2));
    assert!(said(&missing).contains("or `-` for standard input"), "{}", said(&missing));
}
