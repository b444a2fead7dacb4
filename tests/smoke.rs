//! The thinnest whole path.

use crate::world::{World, point};

#[tokio::test(flavor = "multi_thread")]
async fn an_event_goes_in_and_a_row_comes_out() {
    let world = World::shared("smoke", 4).await;
    world.add(0, &point("F1", 1, 4.3, 52.1)).await;
    let counts = world.worker().once().await;
    assert_eq!((counts.read, counts.applied), (1, 1));
    assert_eq!(world.state("F1").await, Some((1, "update".into())));
    assert_eq!(world.pending().await, 0);
}
