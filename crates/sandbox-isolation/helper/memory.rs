//! Symbols that compiled code expects: the memory functions, and the unwinding symbol.

use core::ffi::c_int;

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    for i in 0..count {
        // SAFETY: the caller guarantees `count` bytes at both addresses.
        unsafe { to.add(i).write(from.add(i).read()) };
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if (to as usize) <= (from as usize) {
        // SAFETY: copying upwards never overwrites bytes that are still to be read.
        return unsafe { memcpy(to, from, count) };
    }
    for i in (0..count).rev() {
        // SAFETY: the caller guarantees `count` bytes at both addresses.
        unsafe { to.add(i).write(from.add(i).read()) };
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(to: *mut u8, value: c_int, count: usize) -> *mut u8 {
    for i in 0..count {
        // SAFETY: the caller guarantees `count` bytes.
        unsafe { to.add(i).write(value as u8) };
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, count: usize) -> c_int {
    for i in 0..count {
        // SAFETY: the caller guarantees `count` bytes at both addresses.
        let (x, y) = unsafe { (a.add(i).read(), b.add(i).read()) };
        if x != y {
            return c_int::from(x) - c_int::from(y);
        }
    }
    0
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, count: usize) -> c_int {
    // SAFETY: the caller's guarantee is the same.
    unsafe { memcmp(a, b, count) }
}

/// # Safety
/// As in C: `text` ends with a NUL byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: the caller guarantees a NUL byte.
    while unsafe { text.add(length).read() } != 0 {
        length += 1;
    }
    length
}

/// Referenced by the unwind tables of `core`. Nothing here unwinds.
#[unsafe(no_mangle)]
pub extern "C" fn rust_eh_personality() {}
