//! Measures the encoding and decoding of a message: `cargo bench -p code-sandboxes-jupyter-protocol`.
//!
//! The baseline is the unavoidable work: two bare HMACs of the same bytes, one to sign and one to verify.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use hmac::{Hmac, KeyInit as _, Mac as _};
use jupyter_protocol::{Codec, ExecuteRequest, Key, Limits, Session, SignatureScheme, Signer};

const KEY: &str = "5b1f6c9e-7c0a1d3e8f2b4a6c8e0f1d3b";

/// A request to execute that is about 1 KiB as JSON.
fn request() -> ExecuteRequest {
    ExecuteRequest::new("total = sum(range(100))\n".repeat(38))
}

fn codec() -> Codec {
    Codec::new(Signer::new(SignatureScheme::HmacSha256, &Key::new(KEY)), Limits::default())
}

fn both_ways(criterion: &mut Criterion) {
    let session = Session::new("me");
    let (sender, mut receiver) = (codec(), codec());
    let there_and_back = |frames: Vec<Bytes>, receiver: &mut Codec| {
        let message = receiver.decode(frames).map(|raw| raw.parse(&Limits::default()));
        message.unwrap_or_else(|rejected| panic!("{rejected}"))
    };
    let mut group = criterion.benchmark_group("execute_request of 1 KiB");
    group.bench_function("encode, sign, verify, decode", |bencher| {
        bencher.iter_batched(
            || session.request(request()),
            |message| there_and_back(sender.encode(&message.into_raw()), &mut receiver),
            BatchSize::SmallInput,
        );
    });
    let frames = sender.encode(&session.request(request()).into_raw());
    let signed: Vec<Bytes> = frames.into_iter().skip(2).collect();
    group.bench_function("two bare HMACs of the same bytes", |bencher| {
        bencher.iter(|| [digest(black_box(&signed)), digest(black_box(&signed))]);
    });
    group.bench_function("four times that, the bar without SHA extensions", |bencher| {
        bencher.iter(|| {
            std::array::from_fn::<_, 4, _>(|_| {
                [digest(black_box(&signed)), digest(black_box(&signed))]
            })
        });
    });
    group.finish();
}

fn digest(parts: &[Bytes]) -> [u8; 32] {
    let mac = Hmac::<sha2::Sha256>::new_from_slice(KEY.as_bytes());
    let mut mac = mac.unwrap_or_else(|error| panic!("{error}"));
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

criterion_group!(codec_benches, both_ways);
criterion_main!(codec_benches);
