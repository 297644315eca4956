// SPDX-License-Identifier: MIT OR Apache-2.0
//! A headless browser, driven by the W3C's WebDriver protocol.

use base64::{Engine, engine::general_purpose::STANDARD};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_mins(5);

/// The protocol's name for the id of an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// No service of the browser's maker is asked for anything.
const OPTIONS: [&str; 8] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

pub struct Browser {
    agent: ureq::Agent,
    session: String,
    _driver: Driver,
}

/// Ends the driver and the browser that it started, whatever the test does.
struct Driver {
    child: Child,
    /// The browser leaves files of its own.
    _temporary: TempDir,
}

impl Drop for Driver {
    fn drop(&mut self) {
        // They may have ended by themselves.
        let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Browser {
    pub fn start() -> Browser {
        let (driver, port) = start_driver();
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        let agent = config.timeout_global(Some(LIMIT)).build().new_agent();
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "timeouts": { "script": LIMIT.as_millis() as u64 },
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "args": OPTIONS },
        } } });
        let mut browser =
            Browser { agent, session: format!("http://127.0.0.1:{port}/session"), _driver: driver };
        let created = browser.post("", &capabilities);
        let id = created["sessionId"].as_str().expect("a session").to_owned();
        browser.session += &format!("/{id}");
        browser
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let url = format!("{}{path}", self.session);
        let request = self.agent.post(&url).header("Content-Type", "application/json");
        let mut response = request.send(body.to_string()).expect("an answer of the driver");
        let limited = response.body_mut().with_config().limit(64 << 20);
        let text = limited.read_to_string().expect("the answer's text");
        let mut answer: Value = serde_json::from_str(&text).expect("JSON of the driver");
        let value = answer["value"].take();
        assert!(value["error"].is_null(), "{path}: {}: {}", value["error"], value["message"]);
        value
    }

    /// Opens a file, and forgets what the console said of the page before.
    pub fn open(&self, file: &Path) {
        self.console();
        self.post("/url", &json!({ "url": format!("file://{}", file.display()) }));
    }

    /// Runs a function's body in the page, and returns its value.
    pub fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Runs a function's body in the page, and returns what it hands to `done`.
    pub fn run_async(&self, script: &str) -> Value {
        let script = format!("const done = arguments[0]; {script}");
        self.post("/execute/async", &json!({ "script": script, "args": [] }))
    }

    /// Types into an element, as with the keyboard.
    pub fn type_into(&self, selector: &str, keys: &str) {
        let find = json!({ "using": "css selector", "value": selector });
        let element = self.post("/element", &find);
        let id = element[ELEMENT].as_str().expect("an element").to_owned();
        self.post(&format!("/element/{id}/value"), &json!({ "text": keys }));
    }

    /// Returns the console's messages since the last call.
    pub fn console(&self) -> Vec<String> {
        let entries = self.post("/se/log", &json!({ "type": "browser" }));
        let entries = entries.as_array().expect("the console's entries");
        entries.iter().map(|entry| entry["message"].as_str().unwrap().to_owned()).collect()
    }

    /// A command of Chromium's own protocol.
    pub fn devtools(&self, command: &str, parameters: &Value) {
        self.post("/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }));
    }

    /// Sets the width of the page, which headless windows cannot have below 500.
    pub fn resize(&self, width: u32, height: u32) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
    }

    pub fn screenshot(&self, file: &Path) {
        let url = format!("{}/screenshot", self.session);
        let mut response = self.agent.get(&url).call().expect("a screenshot");
        let limited = response.body_mut().with_config().limit(64 << 20);
        let answer: Value = serde_json::from_str(&limited.read_to_string().unwrap()).unwrap();
        let picture = STANDARD.decode(answer["value"].as_str().expect("base64")).unwrap();
        std::fs::write(file, picture).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser; the driver ends after it. A session that broke is ended by the driver.
        let _ = self.agent.delete(&self.session).call();
    }
}

/// Starts the driver on a free port, which it prints.
fn start_driver() -> (Driver, u16) {
    let mut command = Command::new("chromedriver");
    command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let temporary = tempfile::tempdir().unwrap();
    command.process_group(0).env("TMPDIR", temporary.path());
    let mut child = command.spawn().unwrap_or_else(|error| {
        panic!(
            "failed to start chromedriver: {error}; install it: cargo xtask test --setup; on \
             Ubuntu Google Chrome and its chromedriver"
        )
    });
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    let driver = Driver { child, _temporary: temporary };
    let (said, port) = mpsc::channel();
    thread::spawn(move || {
        let port = output.lines().map_while(Result::ok).find_map(|line| {
            let (_, rest) = line.split_once("started successfully on port ")?;
            rest.trim_end_matches('.').parse().ok()
        });
        said.send(port)
    });
    let port = port.recv_timeout(LIMIT).ok().flatten();
    (driver, port.expect("chromedriver prints its port"))
}
