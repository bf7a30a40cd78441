// Package quorum is the protocol of a RedLock: a lock on a majority of independent masters
// (nodes). It sends each request to all nodes at once and counts their votes. It implements
// the interface of package protocol, and like that package it knows holds by their ids only,
// and no owners, leases as a caller sees them, or waiters.
//
// The words are those of the models, model/redlock.pml and model/lasted.pml. A node grants its
// vote to a hold (ACQ). The stamp of the grant is unique, and has the new value of the lock's
// counter on that node. The token of the hold is the highest such count of a quorum. It is
// written back (RAISE) to the nodes that are behind. A renewal (RENEW) finds a vote CONTINUOUS,
// or grants it anew, FRESH. A release (REL) takes votes back. It leaves a tombstone where a late
// copy of a request could otherwise make a node vote again.
//
// A hold is confirmed when its votes were granted, and by each renewal that shows that no other
// hold can have had a quorum meanwhile. So what matters of a vote is when it was granted, not
// when the client heard of it. A client knows one of seven things:
//
//	none    no vote
//	older   the vote was granted before the last confirmation
//	untold  before it or after: the reply came late, and the node will tell
//	amid    in the round of the confirmation, perhaps after the other nodes had answered (NO_MID)
//	sole    after it, but the node voted for no other hold before: see ballot.sole
//	found   perhaps after it: a renewal found a vote that the client did not know
//	newer   after it
//
// Each reply moves a vote. A point: it stays.
//
//	                            none   older  untold amid   sole   found  newer
//	ACQ granted, in time        older  .      .      .      .      .      .
//	  its vote was known        .      older  older  older  older  older  older
//	  too late, past the token  untold untold untold .      untold .      .
//	RAISE refused               none   none   none   none   none   none   none
//	CONTINUOUS, granted before  .      .      older  .      .      .      .
//	  granted in the round      .      .      amid   .      .      .      .
//	FRESH, granted now          newer  newer  newer  newer  newer  newer  newer
//	  granted before            found  found  found  found  found  found  found
//	  no other hold before      sole   sole   .      .      sole   .      .
//	FRESH, of an earlier era    untold untold untold untold found  .      found
//	  no other hold before      older  .      .      .      .      .      .
//	confirmed, heard in time    .      .      older  older  older  older  older
//	  heard late                .      .      amid   older  older  amid   amid
//
// A CONTINUOUS vote counts in the round that finds it, unless the client did not know when it was
// granted and the node tells that it was after the confirmation: then it is FRESH. A FRESH vote
// counts from the next round on. A round and a release conclude from what a reply shows of a node,
// by the state that the vote has then; lasted.go says what follows from that.
//
//	        CONTINUOUS  FRESH  no answer  taken back
//	none    kept        -      silent     by its age
//	older   kept        idle   silent     kept
//	untold  -           anew   silent     by its age
//	amid    late        late   silent     late
//	sole    idle        idle   anew       kept
//	found   anew        anew   anew       by its age
//	newer   anew        anew   anew       late
//
// Read in this order: vote.go has these tables, tally.go and lasted.go decide, fanout.go asks, ballot.go
// records what each node may have; acquire.go, keep.go, leave.go and look.go use all of them;
// quarantine.go, clocks.go and admit.go say which nodes may vote at all.
package quorum

// state is what a client knows of a node's vote for a hold.
type state uint8

const (
	none state = iota
	older
	untold
	amid
	sole
	found
	newer
	stateKinds
)

// event is what moves a vote.
type event uint8

const (
	acquired event = iota
	acquiredKnown
	acquiredLate
	raiseRefused
	continuousBefore
	continuousAmid
	freshNow
	freshFound
	freshSole
	staleFresh
	staleSole
	confirmedInTime
	confirmedLate
	eventKinds
)

// moves and shows are the tables of the package comment.
var moves = [eventKinds][stateKinds]state{
	acquired:         {older, older, untold, amid, sole, found, newer},
	acquiredKnown:    {none, older, older, older, older, older, older},
	acquiredLate:     {untold, untold, untold, amid, untold, found, newer},
	raiseRefused:     {none, none, none, none, none, none, none},
	continuousBefore: {none, older, older, amid, sole, found, newer},
	continuousAmid:   {none, older, amid, amid, sole, found, newer},
	freshNow:         {newer, newer, newer, newer, newer, newer, newer},
	freshFound:       {found, found, found, found, found, found, found},
	freshSole:        {sole, sole, untold, amid, sole, found, newer},
	staleFresh:       {untold, untold, untold, untold, found, found, found},
	staleSole:        {older, older, untold, amid, sole, found, newer},
	confirmedInTime:  {none, older, older, older, older, older, older},
	confirmedLate:    {none, older, amid, older, older, amid, amid},
}

var shows = [stateKinds]struct{ continuous, fresh, silence, release seen }{
	none:   {kept, unseen, silent, unseen},
	older:  {kept, idle, silent, kept},
	untold: {unseen, anew, silent, unseen},
	amid:   {late, late, silent, late},
	sole:   {idle, idle, anew, kept},
	found:  {anew, anew, anew, unseen},
	newer:  {anew, anew, anew, late},
}
