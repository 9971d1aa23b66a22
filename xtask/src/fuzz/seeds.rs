//! What the fuzzer begins with: the test vectors, in the form that each target takes.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::workspace;

/// Kernel specifications, for which there are no vectors.
const SPECS: [&str; 2] = [
    r#"{"argv":["python3","-m","k","-f","{connection_file}","{prefix}","{resource_dir}","{{x}}"],"display_name":"K","language":"k","env":{"A":"${HOME}/x$$"},"interrupt_mode":"message","metadata":{"kernel_provisioner":{"provisioner_name":"p"}}}"#,
    r#"{"argv":[],"env":{},"metadata":{"supported_encryption":["curve"]}}"#,
];

const NOTEBOOKS: [&str; 2] = [
    r#"{"nbformat":4,"nbformat_minor":5,"metadata":{"kernelspec":{"name":"python3"}},"cells":[{"cell_type":"code","id":"a","source":["1\n","2"],"outputs":[{"output_type":"stream","name":"stdout","text":"x"}],"metadata":{"tags":["skip-execution"]}},{"cell_type":"markdown","id":"a","source":"t","attachments":{"i":{}},"metadata":{}}]}"#,
    r#"{"nbformat":3,"worksheets":[{"cells":[]}]}"#,
];

/// Writes the seeds of a target to a folder. Those that are there already stay.
pub(super) fn write(target: &str, folder: &Path) -> Result<(), String> {
    for (number, seed) in seeds_of(target)?.iter().enumerate() {
        let path = folder.join(format!("seed-{number}"));
        if !path.exists() {
            fs::write(&path, seed).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(())
}

fn seeds_of(target: &str) -> Result<Vec<Vec<u8>>, String> {
    let texts = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    Ok(match target {
        "frames" => {
            let whole = [vectors("frames")?, vectors("hostile")?].concat();
            whole.iter().map(|vector| unhex(&vector["frames"]).join(&b'\n')).collect()
        }
        "zmtp" => vectors("frames")?.iter().map(|vector| zmtp(&unhex(&vector["frames"]))).collect(),
        "websocket" => vectors("websocket")?.iter().flat_map(websocket).collect(),
        "files" => {
            let files = vectors("connection_files")?.into_iter();
            let mut seeds: Vec<_> = files.map(|vector| vector["file"].to_string().into()).collect();
            seeds.extend::<Vec<_>>(texts(&SPECS));
            seeds
        }
        "notebooks" => texts(&NOTEBOOKS),
        "execution" | "readiness" => {
            let transcripts = [vectors("transcript_python3")?, vectors("transcript_bash")?];
            let parts = transcripts.iter().flat_map(|all| all.chunks(20));
            let (before, between) = if target == "readiness" { ("c\n", "0") } else { ("", "") };
            parts.map(|part| format!("{before}{}", contents(part, between)).into()).collect()
        }
        _ => Vec::new(),
    })
}

fn vectors(name: &str) -> Result<Vec<Value>, String> {
    let path = workspace::root().join(format!("crates/jupyter-protocol/vectors/{name}.json"));
    let text = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))
}

fn unhex(frames: &Value) -> Vec<Vec<u8>> {
    frames.as_array().into_iter().flatten().map(unhex_one).collect()
}

fn unhex_one(digits: &Value) -> Vec<u8> {
    let digits = digits.as_str().unwrap_or_default().as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap_or_default(), 16);
    digits.map(|pair| byte(pair).unwrap_or_default()).collect()
}

/// In pieces of 7 bytes, each frame with its flags and its length.
fn zmtp(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut seed = vec![7];
    for (number, frame) in frames.iter().enumerate() {
        let more = u8::from(number + 1 < frames.len());
        match u8::try_from(frame.len()) {
            Ok(length) => seed.extend([more, length]),
            Err(_) => {
                seed.push(more | 2);
                seed.extend((frame.len() as u64).to_be_bytes());
            }
        }
        seed.extend(frame);
    }
    seed
}

fn websocket(vector: &Value) -> Vec<Vec<u8>> {
    let text = vector["v0_text"].as_str().unwrap_or_default().as_bytes().to_vec();
    let forms = [unhex_one(&vector["v1"]), unhex_one(&vector["v0_binary"]), text];
    forms.into_iter().filter(|form| !form.is_empty()).collect()
}

/// The contents of a part of a conversation, one a line, behind the kind, the channel, and what the target has between. The
/// fuzzer finds out which kinds they may be.
fn contents(messages: &[Value], between: &str) -> String {
    let published = if between.is_empty() { '0' } else { '2' };
    let line = |(number, message): (usize, &Value)| {
        let channel = match message["channel"].as_str() {
            Some("iopub") => published,
            _ if between.is_empty() => '1',
            _ => '0',
        };
        let kind = char::from(b'A' + u8::try_from(number % 32).unwrap_or_default());
        let text = message["texts"][3].as_str().unwrap_or_default();
        format!("{kind}{channel}{between}{text}")
    };
    messages.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target whose seeds are forgotten begins with nothing.
    #[test]
    fn every_target_of_the_protocol_has_seeds() {
        let targets = fs::read_dir(workspace::root().join("fuzz/fuzz_targets")).unwrap();
        let mut names: Vec<String> = targets
            .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        names.sort();
        assert!(names.len() >= 8, "{names:?}");
        for name in names {
            // Its messages are those of the agent, which has no vectors.
            let seeds = seeds_of(&name).unwrap();
            assert_eq!(seeds.len() < 2, name == "messages", "{name}: {} seeds", seeds.len());
        }
    }
}
