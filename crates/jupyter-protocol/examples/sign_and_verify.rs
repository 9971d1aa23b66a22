//! Messages without a connection: create one, sign it, transfer its frames by any means, verify and parse it.
//!
//!     cargo run --no-default-features --example sign_and_verify
#![expect(clippy::print_stdout, reason = "an example talks on its terminal")]

use jupyter_protocol::{
    Codec, Content, ExecuteRequest, Key, Limits, Rejected, Session, SignatureScheme, Signer,
};

fn main() -> Result<(), Rejected> {
    let key = Key::generate();
    let codec = || Codec::new(Signer::new(SignatureScheme::HmacSha256, &key), Limits::default());
    let (client, mut kernel) = (codec(), codec());

    let request = Session::new("me").request(ExecuteRequest::new("6 * 7"));
    let frames = client.encode(&request.into_raw());
    println!("{} frames, signature {:?}", frames.len(), frames[1]);

    let received = kernel.decode(frames.clone())?.parse(&Limits::default());
    match received.content {
        Content::ExecuteRequest(request) => println!("verified, the code is {:?}", request.code),
        other => println!("something else: {other:?}"),
    }

    // A repeated message is a replay, an altered one a forgery.
    for (what, mut frames) in [("replayed", frames.clone()), ("altered", frames)] {
        if what == "altered" {
            frames[5] = "{\"code\": \"evil\"}".into();
        }
        if let Err(rejected) = kernel.decode(frames) {
            println!("{what}: {rejected}");
        }
    }
    Ok(())
}
