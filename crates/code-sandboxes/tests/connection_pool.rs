//! Pools of sandboxes that are used again: one owner at a time, limits, eviction, expiry.

use std::sync::Arc;
use std::time::{Duration, Instant};

use code_sandboxes::connection_pool::{ConnectionLimits, ConnectionPool, PooledConnection};
use code_sandboxes::{Backend, ErrorKind, Manager, Registry, Variant};

fn cells() -> Arc<dyn Backend> {
    Registry::new().backend(Variant::LOCAL_EVAL).expect("cells")
}

fn pool(limits: ConnectionLimits) -> ConnectionPool {
    ConnectionPool::with_limits(cells(), limits)
}

async fn get(pool: &ConnectionPool, label: &str) -> PooledConnection {
    pool.get_or_create(|builder| builder.tag("pool", label)).await.expect("a sandbox")
}

fn small(max_connections: usize) -> ConnectionLimits {
    let acquire_timeout = Duration::from_millis(300);
    ConnectionLimits { max_connections, acquire_timeout, ..ConnectionLimits::default() }
}

#[tokio::test]
async fn a_released_sandbox_is_used_again_with_its_state() {
    let pool = ConnectionPool::new(cells());
    let first = get(&pool, "a").await;
    first.run_code("x = 41").await.unwrap();
    let id = first.id();
    // While it is in use, the next one with these labels is another one.
    let second = get(&pool, "a").await;
    assert_ne!(second.id(), id);
    first.release();
    let again = get(&pool, "a").await;
    assert_eq!(again.id(), id);
    assert_eq!(again.run_code("x + 1").await.unwrap().text(), Some("42"));
    // Other labels, or other settings, are another sandbox.
    drop(again);
    assert_ne!(get(&pool, "b").await.id(), id);
    let limited = pool.get_or_create(|builder| builder.tag("pool", "a").processes(50));
    assert_ne!(limited.await.unwrap().id(), id);
    let status = pool.status();
    assert_eq!((status.created, status.reused, status.in_use), (4, 1, 1), "{status:?}");
    pool.close().await.unwrap();
    let error = pool.get_or_create(|builder| builder).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Terminated);
    // What is in use when the pool is closed ends when it is given back.
    assert_eq!(second.run_code("1").await.unwrap().text(), Some("1"));
}

#[tokio::test]
async fn a_full_pool_evicts_the_longest_unused_and_never_one_in_use() {
    let pool = pool(small(2));
    let (a, b) = (get(&pool, "a").await, get(&pool, "b").await);
    let (a_id, b_id) = (a.id(), b.id());
    a.release();
    tokio::time::sleep(Duration::from_millis(5)).await;
    b.release();
    let c = get(&pool, "c").await;
    assert_eq!(pool.status().evicted, 1);
    let b = get(&pool, "b").await;
    assert_eq!(b.id(), b_id, "it was used later than the other one");

    let began = Instant::now();
    let error = pool.get_or_create(|builder| builder.tag("pool", "a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    assert!(began.elapsed() >= Duration::from_millis(300), "{error}");
    assert_eq!((pool.status().timeouts, pool.status().waiting), (1, 0));

    // A caller that waits gets the next that is given back.
    let waiting = get(&pool, "a");
    let (again, ()) = tokio::join!(waiting, async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        c.release();
    });
    assert_ne!(again.id(), a_id, "the first one was ended");
    assert_eq!(b.run_code("1 + 1").await.unwrap().text(), Some("2"), "it stays with its owner");
    assert_eq!(pool.status().total, 2);
}

#[tokio::test]
async fn what_is_old_or_unused_for_long_ends_unless_it_is_in_use() {
    let limits = ConnectionLimits {
        max_idle_time: Duration::from_millis(200),
        ttl: Duration::from_millis(600),
        ..ConnectionLimits::default()
    };
    let pool = pool(limits);
    let (busy, idle) = (get(&pool, "busy").await, get(&pool, "idle").await);
    idle.release();
    let until = Instant::now() + Duration::from_secs(10);
    while pool.status().idle > 0 {
        assert!(Instant::now() < until, "{:?}", pool.status());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(pool.status().expired, 1);
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(busy.run_code("6 * 7").await.unwrap().text(), Some("42"), "past its age, in use");
    let id = busy.id();
    busy.release();
    assert_ne!(get(&pool, "busy").await.id(), id, "it is not used again");
}

#[tokio::test]
async fn one_that_has_ended_is_not_handed_out() {
    let pool = ConnectionPool::new(cells());
    let first = get(&pool, "a").await;
    let id = first.id();
    first.kill().await.unwrap();
    drop(first);
    let second = get(&pool, "a").await;
    assert_ne!(second.id(), id);
    second.discard().await.unwrap();
    assert_eq!((pool.status().total, pool.status().reused), (0, 0));
}

#[tokio::test]
async fn many_callers_share_a_manager_and_no_sandbox_has_two_owners() {
    let manager = Manager::new([cells()]).unwrap();
    let limits = ConnectionLimits { max_connections: 3, ..ConnectionLimits::default() };
    let pool = ConnectionPool::with_limits(Arc::new(manager), limits);
    let tasks = (0..24).map(|number| {
        let pool = pool.clone();
        tokio::spawn(async move {
            let sandbox = get(&pool, "shared").await;
            let code = "import time\nassert not globals().get('busy')\nbusy = True\ntime.sleep(0.01)\nbusy = False";
            let result = sandbox.run_code(code).await.unwrap();
            assert!(result.success(), "{number}: {result:?}");
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let status = pool.status();
    assert!(status.created <= 3 && status.created + status.reused == 24, "{status:?}");
    pool.close().await.unwrap();
}

#[tokio::test]
async fn detached_sandboxes_are_refused() {
    let pool = ConnectionPool::new(cells());
    let error =
        pool.get_or_create(|builder| builder.detached(Duration::from_secs(60))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}
