// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzz the guest's link: streams of frames, and single messages in a valid frame. The code of the
//! host that takes a message apart gets every message that is read.

use serde_json::Value;
use tramplab_analysis::{
    branch::{Symbols, driver, driver::Cpu},
    profile::{Phase, Profile, Thread, count},
};
use tramplab_model::text::{self, plain};
use tramplab_protocol::{
    frame::{self, FrameError, MAX_PAYLOAD},
    message::{Command, Event, PhaseReply, Request, Response},
};

pub fn run(data: &[u8]) -> bool {
    let mut accepted = stream(data) > 0;
    // A hostile guest computes the checksum as well.
    let mut framed = Vec::from((data.len() as u32).to_le_bytes());
    framed.extend(crc(data).to_le_bytes());
    framed.extend(data);
    match frame::read::<Event>(&mut &framed[..]) {
        Ok(Some(event)) => {
            let again = frame::encode(&event).expect("what was read can be written");
            let read = frame::read::<Event>(&mut &again[..]).expect("what was written can be read");
            assert_eq!(read.as_ref(), Some(&event));
            look_at(event);
            accepted = true;
        }
        Err(FrameError::Message(_)) => {}
        other => panic!("a good frame is taken for {other:?}"),
    }
    // The agent reads requests from the link, and orders from a file in its root.
    if let Ok(Some(request)) = frame::read::<Request>(&mut &framed[..]) {
        let again = frame::encode(&request).expect("what was read can be written");
        assert_eq!(
            frame::read(&mut &again[..]).expect("what was written can be read"),
            Some(request)
        );
        accepted = true;
    }
    accepted |= serde_json::from_slice::<Vec<Command>>(data).is_ok();
    cleaned(data);
    accepted
}

/// The link cleans each message before parsing it. Cleaning removes escapes and invisible
/// characters from every string, and leaves clean messages alone.
fn cleaned(data: &[u8]) {
    let clean = text::json(data);
    assert_eq!(text::json(&clean), clean);
    let Ok(before) = serde_json::from_slice::<Value>(data) else { return };
    let after: Value = serde_json::from_slice(&clean).expect("it is JSON as before");
    assert!(is_clean(&after), "{after:?}");
    assert!(!is_clean(&before) || before == after, "{before:?} became {after:?}");
}

fn is_clean(value: &Value) -> bool {
    let is_clean_text =
        |text: &str| text.chars().all(|c| matches!(c, '\n' | '\t') || text::is_seen(c));
    match value {
        Value::String(text) => is_clean_text(text),
        Value::Array(values) => values.iter().all(is_clean),
        Value::Object(entries) => {
            entries.iter().all(|(name, value)| is_clean_text(name) && is_clean(value))
        }
        _ => true,
    }
}

/// Reads a stream to its end or to its first bad frame; counts the frames.
fn stream(mut data: &[u8]) -> usize {
    for frames in 0.. {
        let before = data.len();
        match frame::read::<Event>(&mut data) {
            Ok(Some(_)) => {
                assert!(before - data.len() >= 8, "a frame without a header");
                continue;
            }
            Ok(None) => assert_eq!(before, 0),
            Err(FrameError::TooLarge(length)) => assert!(length > MAX_PAYLOAD),
            Err(FrameError::Truncated) => assert!(data.is_empty()),
            Err(_) => {}
        }
        return frames;
    }
    unreachable!("each frame takes eight bytes of the data")
}

/// The protocol's CRC-32, computed bit by bit.
pub fn crc(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

fn look_at(event: Event) {
    let Event::Reply { result, .. } = event else { return };
    let response = match result {
        Ok(response) => response,
        Err(error) => {
            plain(&error.to_string());
            return;
        }
    };
    match response {
        Response::LbrWaste(reply) => {
            let addresses = driver::addresses(&reply);
            assert!(addresses.is_sorted());
            let symbols: Symbols = [reply.function.clone()].into_iter().collect();
            if let Ok(waste) = driver::driver_waste(Cpu::Passed, &reply, &symbols) {
                let depth = driver::depth(&reply).expect("it was asked before");
                assert!(waste.points.iter().all(|point| point.records.len() <= depth as usize));
            }
        }
        Response::Explain(reply) => {
            explained(&reply.attach);
            explained(&reply.detach);
        }
        Response::Resolve { symbols } => {
            let table: Symbols = symbols.iter().cloned().collect();
            for address in symbols.iter().flat_map(|symbol| [symbol.start, symbol.end]) {
                if let Some(found) = table.find(address) {
                    assert!((found.start..found.end).contains(&address));
                    assert_eq!(table.place(address).offset, address - found.start);
                }
            }
        }
        _ => {}
    }
}

fn explained(reply: &PhaseReply) {
    let symbols = Symbols::default();
    let profile = reply
        .samples
        .as_ref()
        .map(|samples| count::of_samples("cell", Phase::Attach, samples, &symbols));
    let waiting = count::of_waits("cell", Phase::Attach, &reply.waits, Thread::agent(), &symbols);
    for profile in profile.into_iter().chain([waiting]) {
        if profile.check().is_ok() {
            let text = serde_json::to_vec(&profile).expect("a profile has a form in JSON");
            assert_eq!(
                serde_json::from_slice::<Profile>(&text).expect("what was written can be read"),
                profile
            );
        }
    }
    count::waited(&reply.waits, &symbols);
}
