//! Programs and scripts over a channel that passes on lines of text alone: their bytes travel as base64.

use std::collections::VecDeque;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use flate2::{Decompress, FlushDecompress};
use sandbox_core::{Error, ErrorKind, Result};

use super::{SHELL, ScriptOutput};

/// Script that runs another one and encodes its answer. Its arguments are those of [`run`].
pub const RUN: &str = include_str!("text/run.sh");

/// Script that runs a program and passes on its output. Its arguments are those of [`program_words`].
const PROGRAM: &str = include_str!("text/program.sh");

/// Encodes output in an image with Perl.
const ENCODE: &str = include_str!("text/encode.pl");

/// Script that runs another one and passes on its output. Its arguments are those of [`stream_words`].
const STREAM: &str = include_str!("text/stream.sh");

/// Bytes of input from which their line is long.
const LONG_INPUT: usize = 2 << 10;

/// The form in which the output of a program passes through a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Lines of base64, which [`Lines`] puts together.
    Lines,
    /// The bytes as they are.
    Exact,
}

/// Returns a word as every shell reads it.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns a command line of these words.
pub fn line(words: &[&str]) -> String {
    words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

/// Returns the command line that runs a script, in place of the shell that reads the line. `input` and `output` are files, or empty.
pub fn run(word: &str, input: &str, output: &str, script: &str, arguments: &[&str]) -> String {
    let mut words = vec![SHELL, "-c", RUN, "sh", word, input, output, script];
    words.extend(arguments);
    format!("exec {}", line(&words))
}

/// Returns the command line that runs a script whose outputs are text and need not be told apart, in place of the shell that
/// reads the line.
pub fn run_plain(script: &str, arguments: &[&str]) -> String {
    let script = format!("LC_ALL=C; export LC_ALL\n{script}");
    let mut words = vec![SHELL, "-c", &script, "sh"];
    words.extend(arguments);
    format!("exec {} </dev/null", line(&words))
}

/// Returns the command line of a session that starts a program. Variables are set by the shell itself, so that no list of
/// processes shows them.
///
/// # Errors
/// `InvalidArgument` for a variable that no shell can set.
pub fn program(env: &[(String, String)], has_input: bool, argv: &[String]) -> Result<String> {
    Ok(format!("( {}exec {} )", exports(env)?, line(&program_words(Form::Lines, has_input, argv))))
}

/// Returns the words that run a program in a session of its own. Input comes in lines of base64, up to a line with a point.
pub fn program_words(form: Form, has_input: bool, argv: &[String]) -> Vec<&str> {
    let form = if form == Form::Lines { "lines" } else { "exact" };
    let input = if has_input { "input" } else { "none" };
    let mut words = vec![SHELL, "-c", PROGRAM, "sh", form, input, ENCODE];
    words.extend(argv.iter().map(String::as_str));
    words
}

/// Returns a piece of the input of a program, as [`program_words`] has it: whole lines, without the end of the last one.
pub fn input_piece(data: &[u8]) -> String {
    let line = STANDARD.encode(data);
    if data.len() < LONG_INPUT { line } else { format!("+{}\n{line}", line.len() + 1) }
}

/// Returns the lines of a file that removes itself, sets variables and becomes a program.
///
/// # Errors
/// As [`program`].
pub fn program_file(env: &[(String, String)], words: &[&str]) -> Result<String> {
    Ok(format!("rm -f \"$0\"\n{}exec {}\n", exports(env)?, line(words)))
}

fn exports(env: &[(String, String)]) -> Result<String> {
    let is_name = |name: &str| {
        let mut chars = name.chars();
        chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
            && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if let Some((name, _)) = env.iter().find(|(name, _)| !is_name(name)) {
        return Err(Error::invalid(
            "env",
            format!(
                "has the name {name:?}; variables of commands have names here of letters, digits and `_`"
            ),
        ));
    }
    let set = |(name, value): &(String, String)| format!("export {name}={}; ", quote(value));
    Ok(env.iter().map(set).collect())
}

/// Reads the answer of [`run`].
///
/// # Errors
/// `Unsupported` for an image without the tools; `Protocol` for an answer of another form.
pub fn answer(operation: &'static str, word: &str, text: &str) -> Result<ScriptOutput> {
    if text.trim() == format!("{word} base64") {
        let message = "the image has no `base64`, which files and commands need";
        return Err(Error::unsupported(operation, message)
            .with_context("missing", "base64")
            .with_hint("put the usual tools (coreutils) into the image"));
    }
    let malformed = || {
        let shown: String = text.trim().chars().take(200).collect();
        Error::new(ErrorKind::Protocol, operation, format!("the sandbox answered {shown:?}"))
    };
    let mut encoded = text.as_bytes().to_vec();
    encoded.retain(|byte| !byte.is_ascii_whitespace());
    decoded_answer(operation, word, &STANDARD.decode(encoded).map_err(|_| malformed())?)
}

/// Reads the answer of [`run`], where its base64 is decoded already.
///
/// # Errors
/// As [`answer`].
pub fn decoded_answer(operation: &'static str, word: &str, decoded: &[u8]) -> Result<ScriptOutput> {
    let malformed = || {
        let message = "the sandbox answered something else than the output of a script";
        Error::new(ErrorKind::Protocol, operation, message)
    };
    let mark = format!("\n{word} ");
    let at = memchr::memmem::rfind(decoded, mark.as_bytes()).ok_or_else(malformed)?;
    let errors = &decoded[at + mark.len()..];
    let status_at = memchr::memmem::rfind(errors, b"\nstatus ").ok_or_else(malformed)?;
    let status = String::from_utf8_lossy(&errors[status_at + 8..]);
    Ok(ScriptOutput {
        status: status.trim().parse().map_err(|_| malformed())?,
        stdout: decoded[..at].to_vec(),
        stderr: errors[..status_at].to_vec(),
    })
}

/// Room for what a packed line stands for.
const UNPACKED_SIZE: usize = 64 << 10;

/// Longest packed line. A program of the sandbox may write a line by itself, and a long one would stand for gigabytes.
const MAX_PACKED_LINE: usize = 4 << 10;

/// Decodes the lines of one stream, in the form [`Form::Lines`].
#[derive(Debug, Default)]
pub struct LineDecoder {
    /// Packed lines are parts of one whole.
    unpacker: Option<Decompress>,
}

impl LineDecoder {
    /// Returns the bytes that a line stands for, or `None` for text that is no such line.
    pub fn decode(&mut self, line: &[u8]) -> Option<Bytes> {
        let line = line.trim_ascii_end();
        let Some(packed) = line.strip_prefix(b"~") else {
            return STANDARD.decode(line).ok().map(Bytes::from);
        };
        if packed.len() > MAX_PACKED_LINE {
            return None;
        }
        let packed = STANDARD.decode(packed).ok()?;
        let unpacker = self.unpacker.get_or_insert_with(|| Decompress::new(true));
        let (mut left, mut unpacked) = (&packed[..], Vec::new());
        loop {
            unpacked.reserve(UNPACKED_SIZE);
            let before = (unpacker.total_in(), unpacker.total_out());
            unpacker.decompress_vec(left, &mut unpacked, FlushDecompress::Sync).ok()?;
            let taken = usize::try_from(unpacker.total_in() - before.0).ok()?;
            left = left.get(taken..)?;
            // Output may be pending when all input is taken and there is room.
            if before == (unpacker.total_in(), unpacker.total_out()) {
                return Some(unpacked.into());
            }
        }
    }
}

/// Puts the lines of one stream together, in the form [`Form::Lines`].
#[derive(Debug, Default)]
pub struct Lines {
    rest: BytesMut,
    decoder: LineDecoder,
}

impl Lines {
    /// Takes text of that stream in, and adds what complete lines stand for. Text that is no base64 comes from a shell that
    /// could not start the program, and is standard error as it is.
    pub fn push(&mut self, stream: usize, text: &[u8], pieces: &mut VecDeque<(usize, Bytes)>) {
        self.rest.extend_from_slice(text);
        let Some(end) = memchr::memrchr(b'\n', &self.rest) else { return };
        let complete = self.rest.split_to(end + 1);
        let mut decoded = BytesMut::new();
        for line in complete.split_inclusive(|byte| *byte == b'\n') {
            match self.decoder.decode(line) {
                Some(data) => decoded.extend_from_slice(&data),
                None => {
                    pieces.push_back((stream, decoded.split().freeze()));
                    pieces.push_back((1, Bytes::copy_from_slice(line)));
                }
            }
        }
        pieces.push_back((stream, decoded.freeze()));
        pieces.retain(|(_, data)| !data.is_empty());
    }

    /// Adds the last line, which need not have an end.
    pub fn finish(&mut self, stream: usize, pieces: &mut VecDeque<(usize, Bytes)>) {
        if !self.rest.is_empty() {
            self.push(stream, b"\n", pieces);
        }
    }
}

/// Returns the words that run a script whose output is passed on while the script runs. Its errors follow on standard error,
/// with a last line that [`ended_stream`] reads.
pub fn stream_words<'a>(form: Form, script: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
    let form = if form == Form::Lines { "lines" } else { "exact" };
    let mut words = vec![SHELL, "-c", STREAM, "sh", form, script];
    words.extend(arguments);
    words
}

/// Reads the standard error of [`stream_words`]. Returns `None` for a script that has not come to its end.
pub fn ended_stream(stderr: &[u8]) -> Option<ScriptOutput> {
    let at = memchr::memmem::rfind(stderr, b"\nstatus ")?;
    let status = String::from_utf8_lossy(&stderr[at + 8..]).trim().parse().ok()?;
    Some(ScriptOutput { status, stdout: Vec::new(), stderr: stderr[..at].to_vec() })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Runs a command line in the shell of this host.
    fn shell(line: &str, input: &str) -> (Vec<u8>, Vec<u8>) {
        use std::io::Write as _;
        let mut child = Command::new(SHELL)
            .args(["-c", line])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A program that takes no input may have ended before.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        (output.stdout, output.stderr)
    }

    fn decoded(lines: &[u8]) -> Vec<u8> {
        let mut decoder = LineDecoder::default();
        let lines = lines.split_inclusive(|byte| *byte == b'\n');
        lines.flat_map(|line| decoder.decode(line).unwrap()).collect()
    }

    #[test]
    fn answers_of_scripts_are_exact() {
        let script = r#"printf 'a\0\377 %s\n' "$1"; echo "it's bad" >&2; exit 7"#;
        let (out, _) = shell(&run("w0rd", "", "", script, &["it's $x"]), "");
        let found = answer("test", "w0rd", std::str::from_utf8(&out).unwrap()).unwrap();
        assert_eq!((found.status, &found.stdout[..]), (7, &b"a\0\xff it's $x\n"[..]));
        assert_eq!(found.last_error(), "it's bad");
        let error = answer("test", "w", "sh: not found").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert_eq!(answer("test", "w", "w base64\n").unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn plain_scripts_have_their_arguments_and_no_input() {
        let (out, err) = shell(&run_plain("cat; echo \"$LC_ALL $1\" >&2", &["it's $x"]), "input");
        assert_eq!((&*out, &*err), (&b""[..], &b"C it's $x\n"[..]));
    }

    #[test]
    fn programs_of_sessions_have_exact_streams() {
        let env = vec![("A_B".to_owned(), "it's $HOME".to_owned())];
        let argv =
            ["/bin/sh", "-c", r#"printf 'o\0\1\1\1'; printf "$A_B" >&2; cat"#].map(str::to_owned);
        let command = program(&env, true, &argv).unwrap();
        let (out, err) = shell(&command, &format!("{}\n.\nmore\n", STANDARD.encode(b"in\0\xff")));
        assert_eq!(decoded(&out), b"o\0\x01\x01\x01in\0\xff");
        assert_eq!(decoded(&err), b"it's $HOME");
        // Short and long pieces, one after the other.
        let pieces = [&b"a\0"[..], &[b'x'; 100_001], b"z", &[0xff; 5000]];
        let given: String = pieces.iter().map(|piece| input_piece(piece) + "\n").collect();
        let (out, _) = shell(&program(&[], true, &["cat".to_owned()]).unwrap(), &(given + ".\n"));
        assert_eq!(decoded(&out), pieces.concat());
        let bad = vec![("a.b".to_owned(), String::new())];
        assert_eq!(program(&bad, false, &argv).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn much_output_is_exact_and_a_signal_is_said_nowhere() {
        let count = "i=0; while [ $i -lt 60000 ]; do echo \"line $i\"; i=$((i + 1)); done";
        let argv = ["/bin/sh", "-c", &format!("{count}; head -c 3000000 /dev/zero; kill -9 $$")]
            .map(str::to_owned);
        let (out, err) = shell(&program(&[], false, &argv).unwrap(), "");
        let mut expected: Vec<u8> =
            (0..60_000).flat_map(|number| format!("line {number}\n").into_bytes()).collect();
        expected.resize(expected.len() + 3_000_000, 0);
        assert!(decoded(&out) == expected, "{} bytes", decoded(&out).len());
        assert_eq!(String::from_utf8_lossy(&err), "");
    }

    #[test]
    fn output_is_put_together_wherever_it_is_cut() {
        let lines = format!(
            "{}\n{}\nsh: not found\n",
            STANDARD.encode(b"out\0\xff"),
            STANDARD.encode(b"more")
        );
        for size in 1..lines.len() {
            let (mut found, mut pieces) = (Lines::default(), VecDeque::new());
            lines.as_bytes().chunks(size).for_each(|part| found.push(0, part, &mut pieces));
            found.finish(0, &mut pieces);
            let of = |wanted| -> Vec<u8> {
                let own = pieces.iter().filter(|(stream, _)| *stream == wanted);
                own.flat_map(|(_, data)| data.to_vec()).collect()
            };
            assert_eq!((of(0), of(1)), (b"out\0\xffmore".to_vec(), b"sh: not found\n".to_vec()));
        }
    }

    #[test]
    fn streamed_scripts_have_their_output_errors_and_status() {
        for form in [Form::Lines, Form::Exact] {
            let script = "printf 'a\\0\\377'; printf head >&2; head -c 100000 /dev/zero; exit 7";
            let (out, err) = shell(&line(&stream_words(form, script, &[])), "");
            let (out, err) = match form {
                Form::Lines => (decoded(&out), decoded(&err)),
                Form::Exact => (out, err),
            };
            assert_eq!((out.len(), &out[..3]), (100_003, &b"a\0\xff"[..]));
            let ended = ended_stream(&err).unwrap();
            assert_eq!((ended.status, &ended.stderr[..]), (7, &b"head"[..]));
            assert!(ended_stream(b"head").is_none());
        }
    }
}
