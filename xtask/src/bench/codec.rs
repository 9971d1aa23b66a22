//! Messages of Jupyter: what one costs between being typed and being bytes, both ways.
//!
//! The yardstick is what cannot be left out: the same bytes through a bare HMAC, once to sign and once to verify. For more
//! than one figure there is `cargo bench -p code-sandboxes-jupyter-protocol --bench codec`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit as _, Mac as _};
use jupyter_protocol::bytes::Bytes;
use jupyter_protocol::{Codec, ExecuteRequest, Key, Limits, Session, SignatureScheme, Signer};

use crate::row::{Bar, Row};
use crate::sample::{Measured, compare, text};
use crate::setup::Setup;

const KEY: &str = "5b1f6c9e-7c0a1d3e8f2b4a6c8e0f1d3b";
/// Messages of one sample: a single one takes no longer than the clock does.
const MESSAGES: u32 = 1000;

pub(crate) async fn row(setup: &Setup) -> Row {
    let session = Session::new("me");
    let (sender, mut receiver) = (codec(), codec());
    let frames = sender.encode(&session.request(request()).into_raw());
    let signed: Vec<Bytes> = frames.into_iter().skip(2).collect();
    let ours = async || there_and_back(&session, &sender, &mut receiver);
    let bare = async || twice(&signed);
    let measured = compare(setup.samples(), "two bare HMACs", ours, bare).await;
    // Without them the sums alone take most of the time, and the machine would be measured.
    let bar = if has_sha_extensions() { Bar::Below(6.0) } else { Bar::Ratio(4.0) };
    let name = "execute_request of 1 KiB: encode, sign, verify, decode";
    Row { unit: "µs", ..Row::compared(name, measured, bar) }
}

/// A request to execute that is about 1 KiB as JSON.
fn request() -> ExecuteRequest {
    ExecuteRequest::new("total = sum(range(100))\n".repeat(38))
}

fn codec() -> Codec {
    Codec::new(Signer::new(SignatureScheme::HmacSha256, &Key::new(KEY)), Limits::default())
}

/// Each message is timed alone, with its end: to keep a thousand of them would measure where their memory comes from.
fn there_and_back(session: &Session, sender: &Codec, receiver: &mut Codec) -> Measured {
    let mut took = Duration::ZERO;
    for _ in 0..MESSAGES {
        let message = session.request(request());
        let began = Instant::now();
        let raw = receiver.decode(sender.encode(&message.into_raw())).map_err(text)?;
        let is_read = !raw.parse(&Limits::default()).content.is_malformed();
        took += began.elapsed();
        if !is_read {
            return Err("a message was not read".to_owned());
        }
    }
    Ok(each(took))
}

fn twice(signed: &[Bytes]) -> Measured {
    let began = Instant::now();
    for _ in 0..2 * MESSAGES {
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(KEY.as_bytes()).map_err(text)?;
        black_box(signed).iter().for_each(|part| mac.update(part));
        black_box(mac.finalize());
    }
    Ok(each(began.elapsed()))
}

/// Microseconds of one message.
fn each(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6 / f64::from(MESSAGES)
}

fn has_sha_extensions() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("sha");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("sha2");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}
