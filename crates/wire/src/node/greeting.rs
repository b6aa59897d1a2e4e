//! How a node and who connects to it greet each other.

use super::Hub;
use crate::codec::{self, Frame, Hello, Role};
use crate::key::{Proves, nonce};
use crate::link::Link;
use crate::lost::Lost;
use crate::peer::{greeting, one_store, out_of_place};
use crate::reader::Reader;
use crate::status::NodeStatus;
use tokio::sync::watch;

impl Hub {
    /// The greetings of both sides, and what they prove.
    pub(super) async fn exchange(
        &self,
        link: &Link,
        reader: &mut Reader,
        status: &watch::Receiver<NodeStatus>,
    ) -> Result<Hello, Lost> {
        let hello = greeting(reader.next().await?.frame, "a gateway's greeting")?;
        let ours = {
            let status = status.borrow();
            Hello::new(&status.name, Role::Node { node: status.node }, &self.config)
        };
        if let Err(lost) = one_store(&hello, &self.config) {
            link.say(codec::hello(&ours)); // so that both sides find it
            return Err(lost);
        }
        let Some(key) = &self.config.key else {
            link.say(codec::hello(&ours));
            return Ok(hello);
        };
        let Some(theirs) = &hello.nonce else { return Err(Lost::Unproven) };
        let nonce = nonce().map_err(Lost::Random)?;
        let proof = key.proof(Proves::Connected, theirs, &nonce, ours.role);
        link.say(codec::hello(&Hello { nonce: Some(nonce.clone()), proof: Some(proof), ..ours }));
        match reader.next().await?.frame {
            Frame::Proof(proof) if key.holds(Proves::Connecting, &nonce, theirs, hello.role, &proof) => {
                Ok(hello)
            }
            Frame::Proof(_) => Err(Lost::Unproven),
            Frame::Goodbye(why) => Err(Lost::Goodbye(why)),
            other @ (Frame::Hello(_)
            | Frame::Status(_)
            | Frame::Want(_)
            | Frame::Piece(..)
            | Frame::Ping { .. }
            | Frame::Pong { .. }
            | Frame::Beat
            | Frame::ToNode(_)
            | Frame::FromNode(_)) => Err(out_of_place(&other, "a gateway's proof")),
        }
    }
}
