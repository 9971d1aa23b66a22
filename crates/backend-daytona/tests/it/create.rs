//! Creates: what is sent, what is refused, and that a lost answer makes no second sandbox.

use std::time::Duration;

use sandbox_core::{
    ByteSize, CallContext, CreateSpec, ErrorKind, ListQuery, NetworkPolicy, Sandbox,
};
use sandbox_test_server::Fault;
use sandbox_test_server::daytona::{ORGANIZATION, Options, TOKEN};
use serde_json::json;

use crate::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_for_is_sent_and_holds_inside() {
    let f = Fixture::with(Options::default(), |config| config.target = Some("eu".into())).await;
    let sandbox = f
        .builder()
        .name("mine")
        .tag("team", "red")
        .env("PLAIN", "it's $x")
        .secret("TOKEN", "s3cr3t")
        .network(NetworkPolicy::none())
        .working_dir("work/dir")
        .create()
        .await
        .unwrap();
    let created = f.server.served.noted_of("POST", "/api/sandbox").remove(0);
    assert_eq!(created.body["name"], json!("mine"));
    assert_eq!(created.body["target"], json!("eu"));
    assert_eq!(created.body["labels"]["team"], json!("red"));
    assert_eq!(created.body["labels"]["code-sandboxes.managed-by"], json!("code-sandboxes"));
    assert_eq!(created.body["labels"]["code-toolbox-language"], json!("python"));
    assert_eq!(created.body["networkBlockAll"], json!(true));
    // The owner renews it; a dead one leaves it for ten minutes.
    assert_eq!(
        (&created.body["ttlMinutes"], &created.body["autoDeleteInterval"]),
        (&json!(10), &json!(0))
    );
    let inside = sandbox.commands().run("echo \"$PLAIN|$TOKEN\"; pwd").await.unwrap();
    assert_eq!(inside.stdout, "it's $x|s3cr3t\n/workspace/work/dir\n");
    let info = sandbox.info();
    assert_eq!((info.name.as_deref(), info.tags.len()), (Some("mine"), 1));
    assert!(!format!("{info:?}").contains("s3cr3t"), "{info:?}");
    sandbox.terminate().await.unwrap();
    assert_eq!(f.server.alive(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_built_with_its_size_and_a_failed_build_shows_its_log() {
    let f = Fixture::new().await;
    let image = || f.builder().image("debian:12").cpu(2.0).memory(ByteSize::gib(4)).gpu("H100");
    let sandbox = image().create().await.unwrap();
    let created = f.server.served.noted_of("POST", "/api/sandbox").remove(0);
    assert_eq!(created.body["buildInfo"]["dockerfileContent"], json!("FROM debian:12\n"));
    assert_eq!((&created.body["cpu"], &created.body["memory"]), (&json!(2), &json!(4)));
    assert_eq!(created.body["gpuType"], json!(["H100"]));
    sandbox.terminate().await.unwrap();
    f.server.faults().add("", "start", Fault::Named("build fails"), 1);
    let error = image().create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("exit code: 1"), "{error}");
    assert!(error.hint().unwrap().contains("FROM an image: step"), "{error:?}");
    assert!(f.server.alive().is_empty(), "what could not start is deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_makes_no_second_sandbox() {
    let f = Fixture::new().await;
    f.server.faults().add("POST", "/api/sandbox", Fault::LoseAnswer, 1);
    let sandbox = f.sandbox().await;
    assert_eq!(f.server.alive().len(), 1);
    assert_eq!(f.server.served.noted_of("POST", "/api/sandbox").len(), 1);
    sandbox.terminate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_services_are_asked_again_and_refusals_are_told() {
    let f = Fixture::new().await;
    let busy = json!({"statusCode": 429, "message": "Too many requests"});
    f.server.faults().add(
        "POST",
        "/api/sandbox",
        Fault::Answer(429, busy, vec![("retry-after", "0")]),
        2,
    );
    f.sandbox().await.terminate().await.unwrap();
    assert_eq!(f.server.served.noted_of("POST", "/api/sandbox").len(), 3);
    let quota =
        json!({"statusCode": 403, "message": "Total CPU limit exceeded. Maximum allowed: 10"});
    f.server.faults().add("POST", "/api/sandbox", Fault::Answer(403, quota, vec![]), 1);
    let error = f.builder().create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(
        error.message().contains("CPU limit") && error.hint().unwrap().contains("quota"),
        "{error:?}"
    );
    let error = f.builder().environment("nope").create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(f.server.alive().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_does_not_start_is_deleted() {
    let f = Fixture::with(Options::default(), |config| {
        config.start_timeout = Some(Duration::from_millis(700));
    });
    let f = f.await;
    f.server.faults().add("", "start", Fault::Named("never starts"), 1);
    let error = f.builder().create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.hint().unwrap().contains("start_timeout"));
    f.server.faults().add("", "start", Fault::Named("start fails"), 1);
    let error = f.builder().create().await.unwrap_err();
    assert!(error.message().contains("no runner could start it"), "{error}");
    assert!(f.server.alive().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_create_leaves_nothing() {
    let f =
        Fixture::with(Options { start_time: Duration::from_secs(2), ..Options::default() }, |_| ());
    let f = f.await;
    let creating = f.builder().create();
    let dropped = tokio::time::timeout(Duration::from_millis(500), creating).await;
    assert!(dropped.is_err());
    crate::until("it is deleted", || async { f.server.alive().is_empty() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_and_tags_find_the_same_sandbox_from_elsewhere() {
    let f = Fixture::new().await;
    let call = CallContext::new().with_idempotency_key("run-7");
    let mut spec = CreateSpec::default();
    spec.detached = Some(Duration::from_secs(600));
    let first = f.backend.create(&call, spec.clone()).await.unwrap();
    let second = f.elsewhere().create(&call, spec).await.unwrap();
    assert_eq!(first.info().id, second.info().id);
    let get = |backend| {
        Sandbox::builder(backend)
            .tag("job", "42")
            .detached(Duration::from_secs(600))
            .get_or_create()
    };
    let (one, other) = tokio::join!(get(f.elsewhere()), get(f.elsewhere()));
    assert_eq!(one.unwrap().id(), other.unwrap().id());
    assert_eq!(f.server.alive().len(), 2);
    let mut query = ListQuery::default();
    query.tags.insert("job".into(), "42".into());
    let found = f.elsewhere().list(&CallContext::new(), query).await.unwrap();
    assert_eq!(found.items.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_another_computer_is_creating_is_waited_for() {
    let options = Options { start_time: Duration::from_secs(1), ..Options::default() };
    let f = Fixture::with(options, |_| ()).await;
    let get = |backend| {
        let builder = Sandbox::builder(backend).tag("job", "42");
        builder.detached(Duration::from_secs(600)).get_or_create()
    };
    let later = async {
        crate::until("it is being created", || async { !f.server.alive().is_empty() }).await;
        get(f.elsewhere()).await
    };
    let (first, second) = tokio::join!(get(f.elsewhere()), later);
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(first.id(), second.id());
    assert_eq!(second.commands().run("echo there").await.unwrap().stdout, "there\n");
    // By its id as well.
    let creating = f.builder().name("slow").create();
    let attaching = async {
        crate::until("it is being created", || async { f.server.alive().len() == 2 }).await;
        let call = CallContext::new();
        f.elsewhere().attach(&call, &"daytona/slow".parse().unwrap()).await.map(drop)
    };
    let (created, attached) = tokio::join!(creating, attaching);
    attached.unwrap();
    drop(created.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_name_is_an_error_with_a_remedy() {
    let f = Fixture::new().await;
    let sandbox = f.builder().name("one").create().await.unwrap();
    let error = f.builder().name("one").create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.hint().unwrap().contains("daytona/one: `.terminate()`"), "{error:?}");
    drop(sandbox);
    crate::until("it ends with its handle", || async { f.server.alive().is_empty() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_needs_its_organization_and_a_wrong_key_is_named() {
    let f = Fixture::with(Options::default(), |config| {
        config.api_key = None;
        config.jwt_token = Some(TOKEN.into());
        config.organization_id = Some(ORGANIZATION.to_owned());
    });
    let f = f.await;
    let sandbox = f.sandbox().await;
    assert_eq!(sandbox.commands().run("echo hi").await.unwrap().stdout, "hi\n");
    let bad = f.builder().provider_option("api_key", "dtn_bad0bad0").create().await.unwrap_err();
    assert_eq!(bad.kind(), ErrorKind::Unauthenticated);
    assert!(!format!("{bad:?}").contains("dtn_bad0bad0"), "{bad:?}");
    assert!(bad.hint().unwrap().contains("DAYTONA_API_KEY"));
    let health = f.backend.health(&CallContext::new()).await.unwrap();
    assert!(health.usable, "{health:?}");
    assert_eq!(f.server.alive().len(), 1, "health makes no sandbox");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_gets_another_size_by_a_resize() {
    let f = Fixture::new().await;
    let builder = || f.builder().environment("daytona-small").cpu(4.0);
    let error = builder().create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.hint().unwrap().contains("resize"), "{error:?}");
    let sandbox = builder().provider_option("resize", true).create().await.unwrap();
    let created = f.server.served.noted_of("POST", "/api/sandbox").remove(0);
    assert_eq!(created.body.get("cpu"), None);
    assert_eq!(f.server.served.noted_of("POST", "/resize")[0].body, json!({"cpu": 4}));
    assert_eq!(sandbox.info().resources.unwrap().cpu, Some(4.0));
    // A disk grows while the sandbox is stopped, and then it would be deleted.
    let disk = f.builder().disk(ByteSize::gib(9)).provider_option("resize", true).create().await;
    assert_eq!(disk.unwrap_err().kind(), ErrorKind::Unsupported);
    sandbox.terminate().await.unwrap();
    let refused = json!({"statusCode": 400, "message": "Total CPU limit exceeded"});
    f.server.faults().add("POST", "/resize", Fault::Answer(400, refused, vec![]), 1);
    let error = builder().provider_option("resize", true).create().await.unwrap_err();
    assert!(error.message().contains("CPU limit"), "{error:?}");
    assert!(f.server.alive().is_empty(), "what has not the size that was asked for is deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_made_once_and_shared() {
    let f = Fixture::new().await;
    let with = || {
        let volumes = json!([{"name": "data", "mountPath": "/data"}]);
        f.builder().provider_option("volumes", volumes).create()
    };
    let first = with().await.unwrap();
    first.files().write("/data/note", "shared").await.unwrap();
    first.terminate().await.unwrap();
    let second = with().await.unwrap();
    assert_eq!(&second.files().read("/data/note").await.unwrap()[..], b"shared");
    assert_eq!(f.server.served.noted_of("POST", "/api/volumes").len(), 1);
    let unknown = json!([{"volumeId": "vol-none", "mountPath": "/data"}]);
    let error = f.builder().provider_option("volumes", unknown).create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    let both = json!([{"volumeId": "v", "name": "n", "mountPath": "/data"}]);
    let error = f.builder().provider_option("volumes", both).create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_that_is_not_there_is_an_error_with_a_remedy() {
    let f = Fixture::new().await;
    let nowhere = f.builder().provider_option("target", "nowhere");
    let error = nowhere.create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    assert!(error.message().contains("Region nowhere"), "{error}");
    assert!(error.hint().unwrap().contains("DAYTONA_TARGET"), "{error:?}");
    let full = json!({"statusCode": 503, "message": "No available runners", "code": "NO_RUNNERS"});
    f.server.faults().add("POST", "/api/sandbox", Fault::Answer(503, full, vec![]), 9);
    let error = f.builder().create().await.unwrap_err();
    assert!(error.hint().unwrap().contains("region"), "{error:?}");
    assert!(f.server.alive().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_and_the_directory_are_those_of_the_create_for_later_processes_too() {
    let f = Fixture::new().await;
    let sandbox = f
        .builder()
        .environment("daytona-small")
        .env("WORD", "x y")
        .working_dir("work")
        .detached(Duration::from_secs(600))
        .create()
        .await
        .unwrap();
    let (id, elsewhere) = (sandbox.id(), f.elsewhere());
    drop(sandbox);
    let instance = elsewhere.attach(&CallContext::new(), &id.parse().unwrap()).await.unwrap();
    let again = Sandbox::from_instance(elsewhere, instance);
    let seen = again.commands().run("echo \"$WORD\"; pwd").await.unwrap();
    assert_eq!(seen.stdout, "x y\n/workspace/work\n");
    let code = again.run_code("import os; os.environ['WORD'], os.getcwd()").await.unwrap();
    assert_eq!(code.text(), Some("('x y', '/workspace/work')"));
    again.terminate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_have_every_page() {
    let f = Fixture::new().await;
    let spec = || {
        let mut spec = CreateSpec::default();
        spec.detached = Some(Duration::from_secs(600));
        spec
    };
    let call = CallContext::new();
    // A page of the server has ten.
    for _ in 0..11 {
        f.backend.create(&call, spec()).await.unwrap();
    }
    let found = f.elsewhere().list(&call, ListQuery::default()).await.unwrap();
    assert_eq!(found.items.len(), 11);
    assert!(f.server.served.noted_of("GET", "/api/sandbox").len() >= 2);
}
