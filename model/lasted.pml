/*
 * Whether the hold of a RedLock has lasted: what its owner concludes from the
 * replies to its renewals and its release. internal/quorum/lasted.go has the
 * same names.
 *
 * Three nodes, two of them are a quorum. A has the lock, with token HELD and the
 * votes of two nodes or three. B tries for it again and again. Nodes lose A's
 * votes, with all their data or without, at any time and any number of them, so
 * B may get the lock beside A: keeping it out would be up to the nodes. What is
 * checked is that A is not told a lie:
 *
 *   GAP   A's hold is confirmed, by a renewal or a release, only if B was not
 *         told since the last confirmation that it has the lock. What B is told
 *         after A has begun to release it does not matter. So from then on nothing
 *         happens on the nodes: what else could, can happen before as well.
 *
 * A node says when it granted A's vote, counted in A's rounds. From that follows the
 * state of the vote: OLDER, SOLE or NEWER. (NONE is what the code has where it does not
 * know: it claims less.) A vote counts in each round but the one that it was granted in;
 * the code waits for one more if it did not know the vote.
 *
 * The hold is confirmed up to the beginning of a round if a quorum of votes that are
 * OLDER or SOLE were found in that round or in later ones, in one round or in several.
 *
 * There is no time, but A's leases do not run out here: its deadline has not
 * passed. B's votes end when it gives them back, however late, and it is told that
 * it has the lock while a quorum has its votes: no node loses one of these before.
 * B's tries are younger than A's hold, except for a vote on the third node.
 *
 * The only bounds are K, of the counters, and ROUNDS, in a row that confirm nothing.
 *
 * Each STEP is atomic; see redlock.pml. The nodes are alike, so SYMMETRY looks at
 * one of the states that differ only in who is who.
 *
 * Macros that take one rule away, to see that it is needed:
 *   NO_DOUBT       votes of a quorum confirm the hold, also if they were granted
 *                  anew since the last confirmation
 *   TRUST_SILENT   a node that does not answer the release has kept its vote
 *   TRUST_OTHERS   a node that never had a vote of A, and has none now, has not
 *                  voted for B either
 *   NO_MID         votes that were granted in the round that confirms the hold are
 *                  as old as the confirmation
 *   NO_CLOCK       a node without its data begins at zero, and not at its clock
 * PROBE=3, 4 and 8 assert that the interesting runs do not exist, with a gap and
 * without: they have to fail.
 */

#ifndef K
#define K 5
#endif

#ifndef STEP
#define STEP d_step
#endif

#ifndef ROUNDS
#define ROUNDS 2
#endif

#define QUORUM 2
#define HELD 1     /* A's token */
#define NOBODY 0
#define A 1
#define B 2
#define LEFT 3     /* a vote of a try of B that is over: it is taken back late */

#define EACH_NODE(step) :: step(0) :: step(1) :: step(2)

/* The nodes. */
byte counter[3];
byte holder[3];
byte stamp[3];     /* counter value of the holder's grant */
byte when[3];      /* interval in which A's vote was granted; 0: before  */
                   /* the confirmation, or there is none               */

/* The intervals since the last confirmation: 1, and one more from the beginning of each
   round. The last one is now. */
byte now = 1;

/* A. */
mtype:phase = { HOLDING, RENEWING, LEAVING, OVER };
mtype:phase phase = HOLDING;
mtype:seen = { UNSEEN, OLDER, SOLE, NEWER, GONE, TAKEN, SILENT };
mtype:seen seen[3];
bool given[3];     /* was asked for its vote: it may have voted          */
bool votes[3];     /* answered this round, with a vote of before it      */
byte there[3];     /* the last round that found an OLDER or SOLE vote;   */
                   /* 0: none since the confirmation                     */

/* B. */
byte got[3];       /* stamp of the grant that was read; 0: none          */
bool atToken[3];
byte token;        /* 0: not decided                                     */

byte gap;          /* the first interval in which B was told that it has */
                   /* the lock; 0: none                                  */

#ifdef PROBE
byte met;
bool doubted;
#define MET(bit) met = met | bit
#endif
#define RIVAL 1      /* B has had the lock, and A goes on in doubt,      */
#define UNKNOWN 2    /* and the release is not confirmed                 */
#define RESOLVED 4   /* a doubt is cleared by a node that was silent     */
#define BY_SOLE 8    /* a release needs a node that voted for nobody     */
#define EARLIER 16   /* after a doubt, rounds confirm what was before B  */

#define holds (phase == HOLDING || phase == RENEWING)
#define larger(a, b) (a > b -> a : b)
#define highest larger(larger(counter[0], counter[1]), counter[2])
#define cannot(n) (seen[n] == OLDER || seen[n] == SOLE)
#define others (3 - cannot(0) - cannot(1) - cannot(2))
#define is(kind) ((seen[0] == kind) + (seen[1] == kind) + (seen[2] == kind))
#define ours (is(OLDER) + is(SILENT))
#define continuous (votes[0] + votes[1] + votes[2])
#define allSeen (is(UNSEEN) == 0)
#define isSole(n) (stamp[n] - 1 <= HELD)
#define state(n) (when[n] == 0 -> OLDER : (isSole(n) -> SOLE : NEWER))
#define found(round) ((there[0] >= round) + (there[1] >= round) + (there[2] >= round))
#define gapBefore(round) (gap > 0 && gap < round)

#ifdef NO_DOUBT
#define excludes true
#else
#define excludes (others < QUORUM)
#endif

#ifdef TRUST_SILENT
#define lasted (is(OLDER) + is(SOLE) + is(SILENT) >= QUORUM)
#else
#define lasted (others < QUORUM)
#endif

#ifdef TRUST_OTHERS
#define unmoved(n) true
#else
#define unmoved(n) (counter[n] <= HELD)
#endif

/* ---- fewer states ------------------------------------------------------- */

#ifdef SYMMETRY
hidden byte t;
hidden mtype:seen w;

#define bits(n) (given[n] + 2 * votes[n] + 4 * atToken[n])
#define times(n) (when[n] * 8 + there[n])
#define rankOf(n) ((((((counter[n] * 8 + holder[n]) * 8 + stamp[n]) * 8 + got[n]) * 16 + seen[n]) * 8 + bits(n)) * 64 + times(n))

inline swapped(x, y) { t = x; x = y; y = t }

inline swapNodes(m, n) {
	if
	:: rankOf(m) < rankOf(n) ->
		swapped(counter[m], counter[n]); swapped(holder[m], holder[n]); swapped(stamp[m], stamp[n]);
		swapped(given[m], given[n]);
		swapped(when[m], when[n]); swapped(there[m], there[n]);
		swapped(votes[m], votes[n]); swapped(got[m], got[n]); swapped(atToken[m], atToken[n]);
		w = seen[m]; seen[m] = seen[n]; seen[n] = w
	:: else
	fi
}

inline rename() {
	swapNodes(0, 1); swapNodes(1, 2); swapNodes(0, 1);
	t = 0; w = UNSEEN
}
#else
#define rename() skip
#endif

/* ---- nodes -------------------------------------------------------------- */

inline grantTo(who, n) {
	counter[n]++; holder[n] = who; stamp[n] = counter[n];
	when[n] = (who == A -> now : 0)
}

inline free(n) {
	holder[n] = NOBODY; stamp[n] = 0; when[n] = 0
}

/* A node loses its data: see redlock.pml, CLOCK. */
inline loseData(n) {
	STEP {
		holds && (holder[n] != NOBODY || counter[n] < highest) ->
#ifdef NO_CLOCK
		counter[n] = 0;
#else
		counter[n] = highest;
#endif
		free(n);
		printf("node %d: loses its data, counter %d\n", n, counter[n]);
		rename()
	}
}

/* It loses only the vote: by a forced unlock, or a DEL. */
inline loseVote(n) {
	STEP {
		holds && holder[n] == A ->
		free(n);
		printf("node %d: loses the vote\n", n);
		rename()
	}
}

/* A vote of a try that is over is taken back, however late. */
inline takenBack(n) {
	STEP {
		holds && holder[n] == LEFT ->
		free(n);
		printf("node %d: another's vote is taken back\n", n);
		rename()
	}
}

/* Failed tries of others: a counter grows, and nobody is told anything. */
inline otherTries(n) {
	STEP {
		holds && holder[n] == NOBODY && counter[n] < K ->
		counter[n]++;
		printf("node %d: a try comes and goes, counter %d\n", n, counter[n]);
		rename()
	}
}

/* A copy of A's renewal runs, early or late, and nobody reads the reply. */
inline copyOfRenewal(n) {
	STEP {
		holds && given[n] && holder[n] == NOBODY && counter[n] < K ->
		grantTo(A, n);
		printf("node %d: copy of a renewal, stamp %d\n", n, stamp[n]);
		rename()
	}
}

proctype node(byte n) {
end:	do
	:: loseData(n)
	:: loseVote(n)
	:: takenBack(n)
	:: otherTries(n)
	:: copyOfRenewal(n)
	od
}

/* ---- A ------------------------------------------------------------------ */

inline forgetRound() {
	seen[0] = UNSEEN; seen[1] = UNSEEN; seen[2] = UNSEEN;
	votes[0] = false; votes[1] = false; votes[2] = false
}

/* Votes that were granted in the round that confirms the hold may be younger than the answers
   that do. */
#ifdef NO_MID
#define isBefore(interval) (interval <= c)
#else
#define isBefore(interval) (interval < c)
#endif
#define from(interval) (isBefore(interval) -> 0 : interval - c + 1)

inline confirmNode(n) {
	when[n] = from(when[n]);
	there[n] = (there[n] > c -> there[n] - c + 1 : 0)
}

/* Confirms the hold up to the beginning of round c. */
inline confirm() {
	printf("A: confirmed up to %d of %d\n", c, now);
	assert(!gapBefore(c));  /* GAP */
#ifdef PROBE
	if
	:: c < now && gap > 0 && doubted -> MET(EARLIER)
	:: else
	fi;
#endif
	confirmNode(0); confirmNode(1); confirmNode(2);
	now = now - c + 1;
	gap = (gap > 0 -> gap - c + 1 : 0);
	c = 0
}

inline renew() {
	STEP {
		phase == HOLDING && now <= ROUNDS ->
		now++;
		phase = RENEWING; forgetRound();
		given[0] = true; given[1] = true; given[2] = true;
		printf("A: renews\n");
		rename()
	}
}

/* RENEW runs, and its reply is read. */
inline renewal(n) {
	STEP {
		phase == RENEWING && seen[n] == UNSEEN && (holder[n] != NOBODY || counter[n] < K) ->
		if
		:: holder[n] == NOBODY || holder[n] == A ->
			if
			:: holder[n] == NOBODY -> grantTo(A, n)
			:: else
			fi;
			votes[n] = when[n] < now;
			seen[n] = state(n);
			there[n] = (cannot(n) -> now : there[n])
		:: holder[n] == B || holder[n] == LEFT ->
			seen[n] = TAKEN
		fi;
		printf("A: node %d: %e\n", n, seen[n]);
		rename()
	}
}

/* No answer. Whether the request runs is up to copyOfRenewal. */
inline silence(n) {
	STEP {
		phase == RENEWING && seen[n] == UNSEEN ->
		seen[n] = SILENT;
		printf("A: node %d: silent\n", n);
		rename()
	}
}

inline confirmed() {
	STEP {
		phase == RENEWING && continuous >= QUORUM && excludes ->
		printf("A: renewed\n");
		assert(!gapBefore(now));  /* GAP */
#ifdef PROBE
		if
		:: doubted -> MET(RESOLVED)
		:: else
		fi;
		doubted = false;
#endif
		c = now;
		confirm();
		forgetRound();
		phase = HOLDING;
		rename()
	}
}

inline notConfirmed() {
	STEP {
		phase == RENEWING && allSeen && !(continuous >= QUORUM && excludes) ->
		if
		:: ours < QUORUM ->
			printf("A: lost\n");
			over()
		:: else ->
			printf("A: in doubt, or unknown\n");
#ifdef PROBE
			doubted = doubted || continuous >= QUORUM;
			if
			:: gapBefore(now) && doubted -> MET(RIVAL)
			:: else
			fi;
#endif
			c = now;
			do
			:: c > 1 && found(c) < QUORUM -> c--
			:: else -> break
			od;
			if
			:: c > 1 -> confirm()
			:: else -> c = 0
			fi;
			forgetRound();
			phase = HOLDING
		fi;
		rename()
	}
}

inline leave() {
	STEP {
		phase == HOLDING ->
		phase = LEAVING; forgetRound();
		printf("A: releases\n");
		rename()
	}
}

/* REL runs, and its reply is read. A node that never had a vote is asked too. */
inline release(n) {
	STEP {
		phase == LEAVING && seen[n] == UNSEEN ->
		if
		:: holder[n] == A ->
			seen[n] = state(n);
			free(n)
		:: holder[n] == NOBODY ->
			seen[n] = (!given[n] && unmoved(n) -> SOLE : GONE)
		:: holder[n] == B || holder[n] == LEFT ->
			seen[n] = TAKEN
		fi;
		printf("A: node %d: %e\n", n, seen[n]);
		rename()
	}
}

/* No answer, or one only to a second copy, or to none. */
inline unreleased(n) {
	STEP {
		phase == LEAVING && seen[n] == UNSEEN ->
		seen[n] = SILENT;
		printf("A: node %d: silent\n", n);
		rename()
	}
}

inline released() {
	STEP {
		phase == LEAVING && lasted && is(SILENT) + is(UNSEEN) < QUORUM ->
		printf("A: released\n");
		assert(gap == 0);  /* GAP */
#ifdef PROBE
		if
		:: is(SILENT) == 1 && is(SOLE) == 1 -> MET(BY_SOLE)
		:: else
		fi;
#endif
		over();
		rename()
	}
}

inline notReleased() {
	STEP {
		phase == LEAVING && allSeen && !(lasted && is(SILENT) < QUORUM) ->
		if
		:: ours < QUORUM && is(SILENT) < QUORUM -> printf("A: lost\n")
		:: else ->
			printf("A: release not confirmed\n");
#ifdef PROBE
			if
			:: gap > 0 -> MET(UNKNOWN)
			:: else
			fi
#endif
		fi;
		over();
		rename()
	}
}

/* All that matters has been checked. */
inline over() {
	forgetRound();
	there[0] = 0; there[1] = 0; there[2] = 0;
	phase = OVER
#ifdef PROBE
	; assert((met & (PROBE)) != (PROBE))
#endif
}

proctype owner() {
	byte c;
end:	do
	:: renew()
	EACH_NODE(renewal)
	EACH_NODE(silence)
	:: confirmed()
	:: notConfirmed()
	:: leave()
	EACH_NODE(release)
	EACH_NODE(unreleased)
	:: released()
	:: notReleased()
	od
}

/* ---- B ------------------------------------------------------------------ */

#define votesOfB ((got[0] > 0) + (got[1] > 0) + (got[2] > 0))

inline acquire(n) {
	STEP {
		holds && token == 0 && got[n] == 0 && holder[n] == NOBODY && counter[n] < K ->
		grantTo(B, n); got[n] = stamp[n];
		printf("B: reads grant of node %d, stamp %d\n", n, got[n]);
		rename()
	}
}

inline decide() {
	STEP {
		holds && token == 0 && votesOfB >= QUORUM ->
		token = larger(larger(got[0], got[1]), got[2]);
		atToken[0] = got[0] == token; atToken[1] = got[1] == token; atToken[2] = got[2] == token;
		printf("B: decides on token %d\n", token);
		rename()
	}
}

inline raise(n) {
	STEP {
		holds && token > 0 && got[n] > 0 && !atToken[n] && holder[n] == B && stamp[n] == got[n] ->
		counter[n] = larger(counter[n], token); atToken[n] = true;
		printf("B: raises node %d to %d\n", n, token);
		rename()
	}
}

#define votesFor(n) (atToken[n] && holder[n] == B && stamp[n] == got[n])

inline report() {
	STEP {
		holds && gap == 0 &&
		votesFor(0) + votesFor(1) + votesFor(2) >= QUORUM ->
		gap = now;
		printf("B: holds with token %d\n", token);
		rename()
	}
}

/* Its try or its hold is over. Its votes are taken back, then or later. */
inline giveUp() {
	STEP {
		holds && votesOfB > 0 ->
		for (i : 0 .. 2) {
			if
			:: holder[i] == B -> holder[i] = LEFT
			:: else
			fi;
			got[i] = 0; atToken[i] = false
		}
		i = 0;
		token = 0;
		printf("B: ends\n");
		rename()
	}
}

proctype rival() {
	byte i;
end:	do
	EACH_NODE(acquire)
	:: decide()
	EACH_NODE(raise)
	:: report()
	:: giveUp()
	od
}

/* A has the lock: the nodes that voted have its token, by their grants or its RAISE.
   The third node voted too, or was behind, or has voted for B before. */
init {
	atomic {
		counter[0] = HELD; counter[1] = HELD;
		holder[0] = A; holder[1] = A; stamp[0] = HELD; stamp[1] = HELD;
		given[0] = true; given[1] = true;
		seen[0] = UNSEEN; seen[1] = UNSEEN; seen[2] = UNSEEN;
		if
		:: counter[2] = HELD; holder[2] = A; stamp[2] = HELD; given[2] = true
		:: counter[2] = 0
		:: counter[2] = HELD
		:: counter[2] = HELD; holder[2] = B; stamp[2] = HELD; got[2] = HELD
		:: counter[2] = HELD; holder[2] = LEFT; stamp[2] = HELD
		fi;
		run owner(); run rival();
		run node(0); run node(1); run node(2)
	}
}
