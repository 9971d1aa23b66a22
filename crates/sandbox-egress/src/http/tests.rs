//! Tests of requests that are forwarded and of requests that are refused.

use proptest::prelude::*;

use super::*;

fn push(requests: &mut Requests, bytes: &[u8]) -> Result<Vec<u8>, RequestError> {
    let mut out = Vec::new();
    requests.push(bytes, &mut out, &|host| host == "a.example" || host == "b.example")?;
    Ok(out)
}

fn one(bytes: &[u8]) -> Result<Vec<u8>, RequestError> {
    push(&mut Requests::new(80), bytes)
}

#[test]
fn requests_of_one_host_pass_unchanged() {
    let stream = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n\
        POST /x HTTP/1.1\r\nhost: A.example:80\r\nContent-Length: 5\r\n\r\nhello\
        PUT http://a.example/y HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n\
        5\r\nhello\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n\
        OPTIONS * HTTP/1.1\r\nHost: a.example.\r\n\r\n";
    assert_eq!(one(stream).unwrap(), stream);
    for size in [1, 2, 3, 17] {
        let mut requests = Requests::new(80);
        let mut passed = Vec::new();
        for piece in stream.chunks(size) {
            passed.extend(push(&mut requests, piece).unwrap());
        }
        assert_eq!(passed, stream, "in pieces of {size}");
    }
}

#[test]
fn requests_for_another_host_are_refused() {
    let evil = |text: &str| Err(RequestError::Host(text.into()));
    assert_eq!(one(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"), evil("evil.example"));
    assert_eq!(one(b"GET / HTTP/1.1\r\nHost: a.example:81\r\n\r\n"), evil("a.example:81"));
    let absolute = b"GET http://evil.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n";
    assert_eq!(one(absolute), evil("evil.example"));
    let mut requests = Requests::new(80);
    push(&mut requests, b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").unwrap();
    let second = b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n";
    assert_eq!(push(&mut requests, second), evil("b.example"), "also when it is allowed");
    assert_eq!(one(b"GET / HTTP/1.1\r\n\r\n"), Err(RequestError::NoHost));
    assert_eq!(one(b"GET / HTTP/1.1\r\nHost: \r\n\r\n"), Err(RequestError::NoHost));
    assert_eq!(one(b"GET / HTTP/1.1\r\nHost: a@evil.example\r\n\r\n"), Err(RequestError::NoHost));
}

#[test]
fn a_request_hidden_in_a_body_stays_a_body() {
    let hidden = "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    let length = hidden.len();
    let head = format!("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {length}\r\n\r\n");
    let stream = format!("{head}{hidden}");
    assert_eq!(one(stream.as_bytes()).unwrap(), stream.as_bytes());
    let short = format!("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n{hidden}");
    assert_eq!(one(short.as_bytes()), Err(RequestError::Host("evil.example".into())));
}

#[test]
fn ambiguous_requests_are_refused() {
    for fields in [
        "Host: a.example\r\nHost: a.example\r\n",
        "Host: a.example\r\nhost: evil.example\r\n",
        "Host: a.example\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "Host: a.example\r\nContent-Length: 1\r\nContent-Length: 1\r\n",
        "Host: a.example\r\nContent-Length: +1\r\n",
        "Host: a.example\r\nContent-Length: 1, 1\r\n",
        "Host: a.example\r\nContent-Length: 99999999999999999999\r\n",
        "Host: a.example\r\nContent-Length:\r\n",
        "Host: a.example\r\nTransfer-Encoding: identity\r\n",
        "Host: a.example\r\nTransfer-Encoding: chunked, chunked\r\n",
        "Host: a.example\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Host: a.example\r\nTransfer-Encoding : chunked\r\n",
        "Host: a.example\r\n Host: evil.example\r\n",
        "Host: a.example\nHost: evil.example\r\n",
        "Host: a.example\rHost: evil.example\r\n",
        "Host: a.example\r\nUpgrade: h2c\r\n",
        "Host: a.example\r\nX: \0\r\n",
    ] {
        let request = format!("POST / HTTP/1.1\r\n{fields}\r\n");
        assert_eq!(one(request.as_bytes()), Err(RequestError::Protocol), "{fields:?}");
    }
    for request in [
        &b"CONNECT evil.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n"[..],
        b"CONNECT a.example:80 HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET evil.example HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"POST / HTTP/1.0\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"SSH-2.0-x\r\n",
        b"\r\nGET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
    ] {
        assert_eq!(one(request), Err(RequestError::Protocol), "{}", request.escape_ascii());
    }
}

#[test]
fn chunks_of_a_body_are_counted_strictly() {
    let head = "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n";
    for body in [
        "5;x=y\r\nhello\r\n",
        "5\nhello\r\n",
        "-1\r\n",
        "0x5\r\nhello\r\n",
        " 5\r\nhello\r\n",
        "\r\n",
        "11111111111111111\r\n",
        "5\r\nhello\n1\r\n",
        "5\r\nhelloX\r\n",
    ] {
        let request = format!("{head}{body}");
        assert_eq!(one(request.as_bytes()), Err(RequestError::Protocol), "{body:?}");
    }
}

#[test]
fn heads_are_bounded() {
    let mut requests = Requests::new(80);
    push(&mut requests, b"GET / HTTP/1.1\r\nHost: a.example\r\nX: ").unwrap();
    let mut pushed = 0;
    while push(&mut requests, &[b'x'; 1000]).is_ok() {
        pushed += 1000;
        assert!(pushed < 2 * MAX_HEAD_SIZE);
    }
    assert_eq!(push(&mut Requests::new(80), &[b'A'; 30]), Err(RequestError::Protocol));
}

proptest! {
    #[test]
    fn the_cut_of_the_bytes_changes_nothing(cuts in proptest::collection::vec(1_usize..40, 1..50)) {
        let stream = b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n\
            3\r\nabc\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n";
        let (mut requests, mut rest, mut passed) = (Requests::new(80), &stream[..], Vec::new());
        let mut outcome = Ok(());
        for cut in cuts.iter().cycle() {
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            outcome = push(&mut requests, piece).map(|out| passed.extend(out));
            if outcome.is_err() || after.is_empty() {
                break;
            }
            rest = after;
        }
        prop_assert_eq!(outcome, Err(RequestError::Host("evil.example".into())));
        prop_assert!(!passed.windows(4).any(|window| window == b"evil"));
    }

    #[test]
    fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = one(&bytes);
        let prefix = b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n";
        let _ = one(&[&prefix[..], &bytes].concat());
    }
}
