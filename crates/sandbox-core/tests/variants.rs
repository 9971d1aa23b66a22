//! The number of variants that a process can register is bounded. Alone in a program, because it uses them up.

use sandbox_core::{ErrorKind, Variant};

#[test]
fn a_process_registers_a_bounded_number_of_names() {
    let name = |number: usize| format!("cloud-{number}");
    let count = (0..).take_while(|number| Variant::register(&name(*number)).is_ok()).count();
    assert_eq!(count, 64);
    let error = Variant::register(&name(count)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("a process can register 64 variants"), "{error}");
    Variant::register(&name(0)).expect("that name is there already");
    assert_eq!(Variant::all().len(), Variant::well_known().len() + count);
}
