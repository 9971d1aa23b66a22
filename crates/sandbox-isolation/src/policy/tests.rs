//! Tests of policies in their text form.

use super::*;
use crate::spec::{CellKind, Resource, Rlimit};

fn host() -> HostView {
    let link = |target: &str, text: &str| Entry {
        target: target.into(),
        kind: EntryKind::Link(text.into()),
    };
    let directory =
        |path: &str| Entry { target: path.into(), kind: EntryKind::Directory(path.into()) };
    HostView {
        base: "/tmp".into(),
        system: vec![directory("/usr"), link("/bin", "usr/bin")],
        configuration: Some(vec![
            directory("/etc/ssl/certs"),
            link("/etc/localtime", "/usr/share/x"),
        ]),
        devices: vec!["null"],
        landlock: 7,
        is_root: false,
        filters: true,
    }
}

fn small() -> CellSpec {
    CellSpec {
        own: Vec::new(),
        writable: Vec::new(),
        mounts: Vec::new(),
        files: Vec::new(),
        isolation: CellKind::Strict,
        binds: Vec::new(),
        disk_bytes: 1 << 20,
        disk_inodes: 1000,
        shm_bytes: 1 << 16,
        memory: None,
        cpu: None,
        hostname: "box".to_owned(),
        user: "sandbox".to_owned(),
        no_network: false,
        gate: false,
        rlimits: vec![Rlimit::fixed(Resource::Processes, 10)],
    }
}

#[test]
fn own_files_are_outside_of_host_directories() {
    let binds = [Entry {
        target: "/srv/venv/bin".into(),
        kind: EntryKind::Directory("/srv/venv/bin".into()),
    }];
    let made = |path: &str| {
        let files = vec![(path.into(), "text".to_owned())];
        strict(&CellSpec { files, ..small() }, &binds, &host(), FilterProfile::default())
    };
    let plan = format!("{:?}", made("/srv/venv/pip.conf").unwrap());
    assert!(plan.contains("/srv/venv/pip.conf"), "{plan}");
    for taken in
        ["/srv/venv/bin/x", "/usr/x", "/srv/venv/../x", "relative", "/proc/x", "/etc/passwd"]
    {
        assert!(matches!(made(taken), Err(Error::Invalid(_))), "{taken}");
    }
}

#[test]
fn a_strict_cell_is_set_up_in_this_order() {
    let binds = [
        // Already inside a bind: nothing to do.
        Entry {
            target: "/usr/lib/python3".into(),
            kind: EntryKind::Directory("/usr/lib/python3".into()),
        },
        Entry { target: "/tmp/tools/x".into(), kind: EntryKind::Directory("/tmp/tools/x".into()) },
        Entry { target: "/opt/file".into(), kind: EntryKind::File("/srv/file".into()) },
    ];
    insta::assert_snapshot!(format!(
        "{:?}",
        strict(&small(), &binds, &host(), FilterProfile::default()).unwrap()
    ));
}

#[test]
fn a_cell_without_isolation_is_set_up_in_this_order() {
    let plan = off(&CellSpec::off(), Path::new("/run/private")).unwrap();
    insta::assert_snapshot!(format!("{plan:?}"), @r"
    enter /run/private/workspace
    limit Core to 0, at most 0
    own directory /run/private
    seal without isolation
    ");
}

#[test]
fn a_confined_cell_is_set_up_in_this_order() {
    let binds =
        [Entry { target: "/opt/python".into(), kind: EntryKind::Directory("/opt/python".into()) }];
    let plan = confined(&CellSpec::confined(), &binds, &host(), Path::new("/run/private")).unwrap();
    insta::assert_snapshot!(format!("{plan:?}"), @r"
    enter /run/private/workspace
    read only below /usr /bin /etc/ssl/certs /etc/localtime /etc/passwd /etc/group /etc/hosts /etc/resolv.conf /etc/nsswitch.conf /opt/python /proc; write only below /run/private /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty
    153 rules on system calls
    limit Core to 0, at most 0
    own directory /run/private
    seal without isolation
    ");
    // Version 2 cannot keep the user's files from being truncated.
    for (without, names) in [
        (HostView { landlock: 1, ..host() }, "Landlock version 3"),
        (HostView { landlock: 2, ..host() }, "Landlock version 3"),
        (HostView { is_root: true, ..host() }, "root"),
        (HostView { filters: false, ..host() }, "system call filters"),
    ] {
        let outcome = confined(&CellSpec::confined(), &[], &without, Path::new("/run/private"));
        let Err(Error::Unavailable { missing, .. }) = &outcome else { panic!("{outcome:?}") };
        assert!(missing.contains(names), "{missing}");
    }
    strict(
        &small(),
        &[],
        &HostView { landlock: 2, is_root: true, ..host() },
        FilterProfile::default(),
    )
    .unwrap();
}

#[test]
fn own_directories_are_made_and_writable_unless_they_exist() {
    let own = ["/new", "/usr", "/usr/new", "/tmp", "/proc/new"].map(PathBuf::from).to_vec();
    let plan =
        strict(&CellSpec { own, ..small() }, &[], &host(), FilterProfile::default()).unwrap();
    let made = |path: &str| {
        plan.ops.iter().any(|op| {
            matches!(op, Op::Directory { path: made, owner: Owner::Cell, .. } if made == Path::new(path))
        })
    };
    let ruleset = plan.ops.iter().find_map(|op| match op {
        Op::Ruleset(ruleset) => Some(ruleset),
        _ => None,
    });
    let rules = ruleset.unwrap().rules.iter().map(|rule| rule.path.clone()).collect::<Vec<_>>();
    assert!(made("/new") && rules.contains(&"/new".into()));
    for path in ["/usr", "/usr/new", "/proc/new"] {
        assert!(!made(path) && !rules.contains(&path.into()), "{path}");
    }
    for path in ["relative", "/a/../b"] {
        let spec = CellSpec { own: vec![path.into()], ..small() };
        strict(&spec, &[], &host(), FilterProfile::default()).unwrap_err();
    }
}

#[test]
fn every_plan_ends_with_its_seal() {
    for spec in [small(), CellSpec::strict()] {
        let plan = strict(&spec, &[], &host(), FilterProfile::default()).unwrap();
        let [.., Op::Identity { uid: CELL_ID, gid: CELL_ID }, Op::Seal] = &plan.ops[..] else {
            panic!("{plan:?}");
        };
        assert_eq!(plan.ops.iter().filter(|op| **op == Op::Seal).count(), 1);
        assert_eq!(plan.ops.iter().filter(|op| **op == Op::LeaveHost).count(), 1);
    }
}

#[test]
fn nothing_writable_of_the_host_is_ever_shown() {
    let plan =
        strict(&CellSpec::strict(), &[], &HostView::detect(7), FilterProfile::default()).unwrap();
    for op in &plan.ops {
        if let Op::Bind { source, attributes, .. } = op {
            let device = source.starts_with("/dev");
            assert!(device || *attributes == Attributes::READ_ONLY, "{op}");
        }
    }
}

/// An ordinary user's cell owns the root, and then only a read-only mount protects it.
#[test]
fn without_landlock_the_root_is_read_only() {
    let own = vec![PathBuf::from("/new")];
    let spec = CellSpec { own, ..small() };
    let operations = |host: &HostView| {
        let plan = format!("{:?}", strict(&spec, &[], host, FilterProfile::default()).unwrap());
        plan.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let closed = operations(&HostView { landlock: 0, ..host() });
    let at =
        |text: &str| closed.iter().position(|op| op == text).unwrap_or_else(|| panic!("{text}"));
    let end = at("restrict / (ro,nosuid,nodev)");
    assert!(at("detach the host") < end);
    for path in ["/workspace", "/data", "/home/sandbox", "/run", "/tmp", "/var/tmp", "/new"] {
        assert!(at(&format!("separate {path}")) < end);
    }
    assert!(!operations(&host()).iter().any(|op| op.starts_with("restrict / ")));
}

#[test]
fn the_device_that_gives_memory_is_read_only_under_the_monitor() {
    let counting = FilterProfile { counts_memory: true, ..FilterProfile::default() };
    let with = HostView { devices: vec!["null", "zero"], ..host() };
    let text =
        |host: &HostView, profile| format!("{:?}", strict(&small(), &[], host, profile).unwrap());
    assert!(text(&with, FilterProfile::default()).contains(" /dev/shm /dev /proc"));
    let counted = text(&with, counting);
    assert!(counted.contains(" /dev/shm /dev/null /dev/pts /proc"), "{counted}");
    assert!(counted.contains("/dev/zero"), "it stays readable");
    // Without Landlock it could be written there, so it is left out.
    let without = HostView { landlock: 0, ..with };
    assert!(!text(&without, counting).contains("zero"));
    assert!(text(&without, FilterProfile::default()).contains("/dev/zero"));
}

#[test]
fn without_a_control_group_memory_is_limited_for_each_process() {
    let spec = CellSpec { memory: Some(64 << 20), ..small() };
    let data = |profile| {
        let plan = strict(&spec, &[], &host(), profile).unwrap();
        let limit = Op::Limit(Rlimit::fixed(Resource::Data, 64 << 20));
        plan.ops.contains(&limit)
    };
    assert!(data(FilterProfile { counts_memory: true, ..FilterProfile::default() }));
    assert!(!data(FilterProfile::default()));
}

#[test]
fn invalid_limits_of_the_whole_cell_are_refused() {
    for spec in [
        CellSpec { memory: Some((16 << 20) - 1), ..small() },
        CellSpec { memory: Some(u64::MAX), ..small() },
        CellSpec { cpu: Some(9), ..small() },
        CellSpec { cpu: Some(u32::MAX), ..small() },
        CellSpec { memory: Some(1 << 20), ..CellSpec::off() },
        CellSpec { cpu: Some(1000), ..CellSpec::off() },
    ] {
        let outcome = match spec.isolation {
            CellKind::Strict => strict(&spec, &[], &host(), FilterProfile::default()),
            _ => off(&spec, Path::new("/run/private")),
        };
        assert!(matches!(outcome, Err(Error::Invalid(_))), "{spec:?}");
    }
}

#[test]
fn invalid_limits_are_refused() {
    let mut spec = small();
    spec.rlimits = vec![Rlimit { resource: Resource::Core, soft: 2, hard: 1 }];
    assert!(matches!(
        strict(&spec, &[], &host(), FilterProfile::default()),
        Err(Error::Invalid(_))
    ));
    spec.rlimits = vec![Rlimit::fixed(Resource::Core, 0); MAX_LIMITS + 1];
    assert!(matches!(
        strict(&spec, &[], &host(), FilterProfile::default()),
        Err(Error::Invalid(_))
    ));
}

#[test]
fn a_gate_is_opened_while_the_rights_for_it_are_there() {
    let spec = CellSpec { gate: true, ..small() };
    let plan = strict(&spec, &[], &host(), FilterProfile::default()).unwrap();
    let at = |wanted: fn(&Op) -> bool| plan.ops.iter().position(wanted).unwrap();
    assert!(at(|op| *op == Op::Loopback) < at(|op| *op == Op::Gate));
    assert!(at(|op| *op == Op::Gate) < at(|op| matches!(op, Op::Identity { .. })));
    assert!(plan.layers().contains(&"network-gate"));
    let without = strict(&small(), &[], &host(), FilterProfile::default()).unwrap();
    assert!(!without.ops.contains(&Op::Gate) && !without.layers().contains(&"network-gate"));
}

#[test]
fn mounts_of_the_host_come_last_and_hide_nothing() {
    let mount = |target: &str, writable| {
        HostMount::open(Path::new("/usr"), Path::new(target), writable).unwrap()
    };
    let plan = |mounts: Vec<HostMount>| {
        let binds =
            [Entry { target: "/opt/x".into(), kind: EntryKind::Directory("/opt/x".into()) }];
        strict(&CellSpec { mounts, ..small() }, &binds, &host(), FilterProfile::default())
    };
    let found = plan(vec![mount("/workspace/a/b", true), mount("/srv/c", false)]).unwrap();
    let text = format!("{found:?}");
    for line in [
        "directory /workspace/a 0755 of the cell",
        "mount directory /usr of the host at /workspace/a/b (nosuid,nodev)",
        "directory /srv 0755\n",
        "mount directory /usr of the host at /srv/c (ro,nosuid,nodev)",
        "write only below /workspace /data /home/sandbox /run /tmp /var/tmp /dev/shm /workspace/a/b ",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    for taken in ["/opt", "/opt/x", "/opt/x/y", "/bin/x", "/dev/pts", "/", "/etc/ssl", "/etc"] {
        assert!(plan(vec![mount(taken, false)]).is_err(), "{taken}");
    }
    assert!(plan(vec![mount("/srv/c", false), mount("/srv/c/d", false)]).is_err());
    assert!(plan(vec![mount("/srv/c/d", false), mount("/srv/c", false)]).is_err());
}
