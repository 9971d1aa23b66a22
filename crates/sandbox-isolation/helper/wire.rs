//! Reads and writes packets, with descriptors, in fixed memory.

use core::ffi::CStr;

use crate::protocol::MAX_DESCRIPTORS;
use crate::sys::{self, EINTR, EINVAL, Errno, Message, Result};

/// Reads fields from the front of some bytes; every error is EINVAL.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or(EINVAL)?;
        self.rest = rest;
        Ok(head)
    }

    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub fn u32(&mut self) -> Result<u32> {
        let bytes = self.take(4)?.try_into().map_err(|_| EINVAL)?;
        Ok(u32::from_le_bytes(bytes))
    }

    pub fn u64(&mut self) -> Result<u64> {
        let bytes = self.take(8)?.try_into().map_err(|_| EINVAL)?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub fn text(&mut self) -> Result<&'a CStr> {
        let text = CStr::from_bytes_until_nul(self.rest).map_err(|_| EINVAL)?;
        self.rest = &self.rest[text.to_bytes_with_nul().len()..];
        Ok(text)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let count = self.u32()? as usize;
        self.take(count)
    }
}

/// A small packet under construction. Fields beyond the capacity are cut: only step names can be that long.
pub struct Packet {
    bytes: [u8; 512],
    length: usize,
}

impl Packet {
    pub fn new(kind: u8) -> Self {
        let mut packet = Self { bytes: [0; 512], length: 0 };
        packet.put(&[kind]);
        packet
    }

    pub fn put(&mut self, bytes: &[u8]) -> &mut Self {
        let count = bytes.len().min(self.bytes.len() - self.length);
        self.bytes[self.length..self.length + count].copy_from_slice(&bytes[..count]);
        self.length += count;
        self
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub fn errno(&mut self, errno: Errno) -> &mut Self {
        self.u32(errno.0 as u32)
    }

    pub fn send(&self, socket: i32, descriptor: Option<i32>) -> Result {
        self.send_with(socket, descriptor.as_slice())
    }

    /// Sends the packet with several descriptors, at most [`MAX_DESCRIPTORS`].
    pub fn send_with(&self, socket: i32, descriptors: &[i32]) -> Result {
        send(socket, &self.bytes[..self.length], descriptors)
    }
}

#[repr(C)]
struct Header {
    name: usize,
    name_length: usize,
    parts: *mut Part,
    part_count: usize,
    control: *mut u8,
    control_length: usize,
    flags: usize,
}

#[repr(C)]
struct Part {
    at: *mut u8,
    length: usize,
}

#[repr(C)]
struct Control {
    length: usize,
    level: i32,
    kind: i32,
    descriptors: [i32; MAX_DESCRIPTORS],
}

const CONTROL_HEADER: usize = 16;
const SOL_SOCKET: i32 = 1;
const SCM_RIGHTS: i32 = 1;

fn send(socket: i32, bytes: &[u8], descriptors: &[i32]) -> Result {
    const MSG_NOSIGNAL: usize = 0x4000;
    let mut part = Part { at: bytes.as_ptr().cast_mut(), length: bytes.len() };
    let length = CONTROL_HEADER + size_of_val(descriptors);
    let mut control =
        Control { length, level: SOL_SOCKET, kind: SCM_RIGHTS, descriptors: [-1; MAX_DESCRIPTORS] };
    control.descriptors.get_mut(..descriptors.len()).ok_or(EINVAL)?.copy_from_slice(descriptors);
    let header = Header {
        name: 0,
        name_length: 0,
        parts: &raw mut part,
        part_count: 1,
        control: (&raw mut control).cast(),
        // The kernel reads whole words: an odd number of descriptors is padded.
        control_length: if descriptors.is_empty() { 0 } else { length.next_multiple_of(8) },
        flags: 0,
    };
    loop {
        let at = (&raw const header).cast_mut().cast();
        match sys::raw_message(Message::Send, socket, at, MSG_NOSIGNAL) {
            Err(EINTR) => {}
            outcome => return outcome,
        }
    }
}

/// One received packet. The receiver must close its descriptors.
pub struct Received<'a> {
    pub bytes: &'a [u8],
    descriptors: [i32; MAX_DESCRIPTORS],
    count: usize,
}

impl Received<'_> {
    pub fn descriptors(&self) -> &[i32] {
        &self.descriptors[..self.count]
    }

    pub fn close_descriptors(&self) {
        for fd in self.descriptors() {
            sys::close(*fd);
        }
    }
}

/// Receives one packet; an empty one is the end of the stream.
pub fn receive(socket: i32, buffer: &mut [u8]) -> Result<Received<'_>> {
    const MSG_TRUNCATED: usize = 0x20 | 0x08;
    const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
    let mut part = Part { at: buffer.as_mut_ptr(), length: buffer.len() };
    let mut control = Control { length: 0, level: 0, kind: 0, descriptors: [-1; MAX_DESCRIPTORS] };
    let mut header = Header {
        name: 0,
        name_length: 0,
        parts: &raw mut part,
        part_count: 1,
        control: (&raw mut control).cast(),
        control_length: size_of::<Control>(),
        flags: 0,
    };
    let length = loop {
        let at = (&raw mut header).cast();
        match sys::raw_message(Message::Receive, socket, at, MSG_CMSG_CLOEXEC) {
            Err(EINTR) => {}
            outcome => break outcome?,
        }
    };
    let carried = header.control_length >= CONTROL_HEADER
        && control.level == SOL_SOCKET
        && control.kind == SCM_RIGHTS;
    let count = if carried { (control.length - CONTROL_HEADER) / size_of::<i32>() } else { 0 };
    let received = Received {
        bytes: &buffer[..length],
        descriptors: control.descriptors,
        count: count.min(MAX_DESCRIPTORS),
    };
    if header.flags & MSG_TRUNCATED != 0 {
        received.close_descriptors();
        return Err(EINVAL);
    }
    Ok(received)
}
