// SPDX-License-Identifier: MIT OR Apache-2.0
//! An HTTP server of a test. Each connection gets one answer.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

pub struct Request {
    pub line: String,
    headers: Vec<String>,
}

impl Request {
    pub fn path(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The first byte that is asked for.
    pub fn from(&self) -> usize {
        let range = self.header("Range").and_then(|range| range.strip_prefix("bytes="));
        range.map_or(0, |range| range.trim_end_matches('-').parse().unwrap())
    }
}

pub struct Answer {
    head: String,
    body: Vec<u8>,
}

impl Answer {
    pub fn status(status: u16) -> Answer {
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n");
        Answer { head, body: Vec::new() }
    }

    pub fn redirect(to: &str) -> Answer {
        let head = format!("HTTP/1.1 302 X\r\nLocation: {to}\r\nContent-Length: 0\r\n");
        Answer { head, body: Vec::new() }
    }

    pub fn whole(bytes: &[u8]) -> Answer {
        Answer::file(bytes, 0)
    }

    pub fn file(bytes: &[u8], from: usize) -> Answer {
        let rest = &bytes[from..];
        let mut head = "HTTP/1.1 200 OK\r\n".to_owned();
        if from > 0 {
            let (last, all) = (bytes.len() - 1, bytes.len());
            head = format!("HTTP/1.1 206 Part\r\nContent-Range: bytes {from}-{last}/{all}\r\n");
        }
        head += &format!("Content-Length: {}\r\n", rest.len());
        Answer { head, body: rest.to_owned() }
    }

    /// Sends fewer bytes than it announces.
    pub fn up_to(mut self, length: usize) -> Answer {
        self.body.truncate(length);
        self
    }

    pub fn cut(bytes: &[u8], length: usize) -> Answer {
        Answer::whole(bytes).up_to(length)
    }

    /// Announces no length.
    pub fn unsized_(bytes: &[u8]) -> Answer {
        Answer { head: "HTTP/1.1 200 OK\r\n".into(), body: bytes.to_owned() }
    }

    pub fn endless(bytes: &[u8]) -> Answer {
        Answer::unsized_(&bytes.repeat(20))
    }
}

pub struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = requests.clone();
        let answer = Arc::new(answer);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (kept, answer) = (kept.clone(), answer.clone());
                thread::spawn(move || serve(stream, &kept, &*answer));
            }
        });
        Server { address, requests }
    }

    /// The URL of a port where nothing listens.
    pub fn closed() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn asked(&self) -> Vec<String> {
        self.each(|request| request.path().to_owned())
    }

    pub fn ranges(&self) -> Vec<usize> {
        self.each(Request::from)
    }

    pub fn lines(&self) -> Vec<String> {
        self.each(|request| request.line.clone())
    }

    fn each<T>(&self, of: impl Fn(&Request) -> T) -> Vec<T> {
        self.requests.lock().unwrap().iter().map(of).collect()
    }
}

fn serve(mut stream: TcpStream, kept: &Mutex<Vec<Request>>, answer: &dyn Fn(&Request) -> Answer) {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(line) = lines.next() else { return };
    let headers = lines.take_while(|line| !line.is_empty()).collect();
    let request = Request { line, headers };
    let Answer { head, body } = answer(&request);
    kept.lock().unwrap().push(request);
    // A client that has enough closes early.
    let _ = stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes());
    let _ = stream.write_all(&body);
}
