//! Policies as text.

use super::*;
use crate::spec::{CellKind, Resource, Rlimit};

fn host() -> HostView {
    let link =
        |target: &str, text: &str| Entry { target: target.into(), what: What::Link(text.into()) };
    let directory = |path: &str| Entry { target: path.into(), what: What::Directory(path.into()) };
    HostView {
        base: "/tmp".into(),
        system: vec![directory("/usr"), link("/bin", "usr/bin")],
        configuration: vec![directory("/etc/ssl/certs"), link("/etc/localtime", "/usr/share/x")],
        devices: vec!["null"],
    }
}

fn small() -> CellSpec {
    CellSpec {
        isolation: CellKind::Strict,
        binds: Vec::new(),
        disk_bytes: 1 << 20,
        disk_inodes: 1000,
        shm_bytes: 1 << 16,
        hostname: "box".to_owned(),
        rlimits: vec![Rlimit::fixed(Resource::Processes, 10)],
    }
}

#[test]
fn a_strict_cell_is_set_up_in_this_order() {
    let binds = [
        // Below what is bound already: nothing to do.
        Entry {
            target: "/usr/lib/python3".into(),
            what: What::Directory("/usr/lib/python3".into()),
        },
        Entry { target: "/tmp/tools/x".into(), what: What::Directory("/tmp/tools/x".into()) },
        Entry { target: "/opt/file".into(), what: What::File("/srv/file".into()) },
    ];
    insta::assert_snapshot!(format!("{:?}", strict(&small(), &binds, &host()).unwrap()));
}

#[test]
fn a_cell_without_isolation_is_set_up_in_this_order() {
    let plan = off(&CellSpec::off(), Path::new("/run/private")).unwrap();
    insta::assert_snapshot!(format!("{plan:?}"), @r"
    enter /run/private
    limit Core to 0, at most 0
    own directory /run/private
    seal without isolation
    ");
}

#[test]
fn every_plan_ends_with_its_seal() {
    for spec in [small(), CellSpec::strict()] {
        let plan = strict(&spec, &[], &host()).unwrap();
        let [.., Op::Identity { uid: CELL_ID, gid: CELL_ID }, Op::Seal] = &plan.ops[..] else {
            panic!("{plan:?}");
        };
        assert_eq!(plan.ops.iter().filter(|op| **op == Op::Seal).count(), 1);
        assert_eq!(plan.ops.iter().filter(|op| **op == Op::LeaveHost).count(), 1);
    }
}

#[test]
fn nothing_writable_of_the_host_is_ever_shown() {
    let plan = strict(&CellSpec::strict(), &[], &HostView::detect()).unwrap();
    for op in &plan.ops {
        if let Op::Bind { source, attributes, .. } = op {
            let device = source.starts_with("/dev");
            assert!(device || *attributes == Attributes::READ_ONLY, "{op}");
        }
    }
}

#[test]
fn limits_that_make_no_sense_are_refused() {
    let mut spec = small();
    spec.rlimits = vec![Rlimit { resource: Resource::Core, soft: 2, hard: 1 }];
    assert!(matches!(strict(&spec, &[], &host()), Err(Error::Invalid(_))));
    spec.rlimits = vec![Rlimit::fixed(Resource::Core, 0); LIMITS_MAX + 1];
    assert!(matches!(strict(&spec, &[], &host()), Err(Error::Invalid(_))));
}
