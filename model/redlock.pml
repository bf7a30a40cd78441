/*
 * The token protocol of RedLock: a majority of independent nodes hands out
 * tokens that grow in the order of holds.
 *
 * Three nodes, two of them are a majority, two clients that try for the lock
 * again and again. There is no time: whatever a clock decides happens here at
 * any moment or never. A lease may run out on any node as soon as it is
 * granted, also under a client that is about to be told that it holds. So two
 * clients may well hold at once here: keeping them apart is up to deadlines,
 * which are not modelled. What is checked is what must be true even then:
 *
 *   ORDER   a hold that was reported before another's round of acquires began
 *           has the lower token;
 *   TWICE   no token is reported twice.
 *
 * The counters of the nodes go up to K, which is the only bound: every run in
 * which none of them would pass K is explored, with any number of attempts,
 * late copies, lost replies, ended leases and losses of data.
 *
 * Each STEP below is atomic: a script is atomic on its node, and what a
 * client does between two messages nobody sees. A request that runs and whose
 * reply is read is one step too, as only the client knows when it read it.
 *
 * Macros that take one rule away, to see that it is needed:
 *   NO_RAISE      the token is not written back to the nodes that were behind
 *   NO_STAMP      RAISE does not look at the stamp of the grant
 *   COUNT_UNREAD  nodes count although the reply of their grant was not read
 *   NO_RESTORE    a node that lost its data comes back with a counter of zero
 *   NO_WAIT       it comes back while rounds that counted on it still run
 * PROBE asserts that the interesting runs do not exist: it has to fail.
 */

#ifndef K
#define K 3      /* at most 8, see COUNTED */
#endif

#ifndef STEP
#define STEP d_step  /* atomic: the same, slower, but spin tells what is unreached */
#endif

#define QUORUM 2
#define NONE 3     /* no node */
#define NOBODY 0   /* holders: nobody, client 1, client 2, or ...           */
#define OTHER 3    /* ... any other attempt: an earlier one of the two      */
                   /* clients, that of a third, the renewal of a hold       */
#define COUNTED 9  /* see got */

#define EACH_NODE(step) :: step(0) :: step(1) :: step(2)

/* The nodes. */
byte counter[3];   /* of the lock, and the largest one the node ever used   */
byte holder[3];
byte stamp[3];     /* counter value of the holder's grant, if a client's    */
byte lost = NONE;  /* node that lost its data and is not admitted yet       */
byte floor_;       /* its restore: largest counter read from the others ... */
bool asked[3];     /* ... and which of them were read                       */

/* The clients' attempts; [0] is not used. */
mtype:phase = { IDLE, ASKING, RAISING };
typedef Attempt {
	mtype:phase phase;
	byte got[3];   /* 0: no grant read; COUNTED: counter known to be at the */
	               /* token (W); else the stamp that was read (rest of G)   */
	byte token;
	byte before;   /* largest token reported before the round began         */
}
Attempt att[3];

/* What was reported. */
bool used[K + 1];
byte newest;

#define granted(c) ((att[c].got[0] != 0) + (att[c].got[1] != 0) + (att[c].got[2] != 0))
#define counted(c) ((att[c].got[0] == COUNTED) + (att[c].got[1] == COUNTED) + (att[c].got[2] == COUNTED))

#ifdef NO_STAMP
#define sameGrant(c, n) true
#else
#define sameGrant(c, n) (stamp[n] == att[c].got[n])
#endif

#ifdef NO_RAISE
#define nothingToRaise(c, n) true
#else
#define nothingToRaise(c, n) (att[c].got[n] == att[c].token)
#endif

#ifdef NO_WAIT
#define waited true
#else
#define waited (att[1].got[lost] == 0 && att[2].got[lost] == 0)
#endif

#ifdef PROBE
byte seen;         /* one bit for each thing that has to happen in one run  */
#define SEEN(bit) seen = seen | bit;
#else
#define SEEN(bit)
#endif
#define HOLD1 1     /* a hold of client 1                                   */
#define HOLD2 2     /* a hold of client 2                                   */
#define RAISED 4    /* a counter that had to be raised                      */
#define REGRANT 8   /* a late copy of an acquire that was granted again     */
#define LOSS 16     /* a loss of data                                       */
#define RESTORE 32  /* a restore that set a counter above zero              */
#define ALL 63

/* ---- what a node does --------------------------------------------------- */

inline grant(c, n) {
	counter[n]++; holder[n] = c; stamp[n] = counter[n]
}

inline free(n) {
	holder[n] = NOBODY; stamp[n] = 0
}

inline raise(n, value) {
	if
	:: counter[n] < value -> counter[n] = value; SEEN(RAISED)
	:: else
	fi
}

/* ---- what a client does ------------------------------------------------- */

inline forget() {
	att[c].token = 0; att[c].before = 0;
	att[c].got[0] = 0; att[c].got[1] = 0; att[c].got[2] = 0
}

/* A new attempt, with an id of its own. */
inline begin() {
	STEP {
		att[c].phase == IDLE ->
		att[c].phase = ASKING; att[c].before = newest;
		printf("client %d: begins\n", c)
	}
}

/* Another round of ACQ, under the same id, after one that came to nothing. */
inline beginAgain() {
	STEP {
		att[c].phase != IDLE ->
		forget();
		att[c].phase = ASKING; att[c].before = newest;
		printf("client %d: begins another round\n", c)
	}
}

/* ACQ runs and its reply is read: a grant, or the answer to the first copy,
   if that one was granted (and is still held). BUSY changes nothing. */
inline acquire(n) {
	STEP {
		att[c].phase == ASKING && att[c].got[n] == 0 && lost != n &&
		(holder[n] == c || (holder[n] == NOBODY && counter[n] < K)) ->
		if
		:: holder[n] == NOBODY -> grant(c, n)
		:: else
		fi;
		att[c].got[n] = stamp[n];
		printf("client %d: reads grant of node %d, stamp %d\n", c, n, stamp[n])
	}
}

/* Enough grants were read: the token is the largest stamp among them, and the
   nodes that are there already need nothing. Grants read later are ignored. */
inline decide() {
	STEP {
		att[c].phase == ASKING && granted(c) >= QUORUM ->
		for (i : 0 .. 2) {
			if
			:: att[c].got[i] > att[c].token -> att[c].token = att[c].got[i]
			:: else
			fi
		}
		for (i : 0 .. 2) {
			if
			:: att[c].got[i] != 0 && nothingToRaise(c, i) -> att[c].got[i] = COUNTED
			:: else
			fi
		}
		i = 0;
		att[c].phase = RAISING;
		printf("client %d: decides on token %d\n", c, att[c].token)
	}
}

/* RAISE runs on a node whose grant was read, and its reply is read. */
inline writeBack(n) {
	STEP {
		att[c].phase == RAISING && att[c].got[n] != 0 && att[c].got[n] != COUNTED &&
		holder[n] == c && sameGrant(c, n) ->
		raise(n, att[c].token);
		att[c].got[n] = COUNTED;
		printf("client %d: raises node %d to %d\n", c, n, att[c].token)
	}
}

/* The same on a node whose grant was not read, so without a stamp. */
inline writeBackUnread(n) {
	STEP {
		att[c].phase == RAISING && att[c].got[n] == 0 && holder[n] == c ->
		raise(n, att[c].token);
		att[c].got[n] = COUNTED;
		printf("client %d: raises node %d to %d, its grant not read\n", c, n, att[c].token)
	}
}

/* The attempt is over, as its hold was reported or it gave up. The id is not
   used again: what is left of it on the nodes is like that of any other. */
inline over() {
	forget();
	att[c].phase = IDLE;
	for (i : 0 .. 2) {
		if
		:: holder[i] == c -> holder[i] = OTHER; stamp[i] = 0
		:: else
		fi
	}
	i = 0
}

/* The client is told that it holds. From here on nothing about its hold
   matters to the order of tokens. */
inline report() {
	STEP {
		att[c].phase == RAISING && counted(c) >= QUORUM ->
		printf("client %d: holds with token %d\n", c, att[c].token);
		assert(att[c].token > att[c].before);  /* ORDER */
		assert(!used[att[c].token]);           /* TWICE */
		SEEN(c)
#ifdef PROBE
		assert(seen != ALL);
#endif
		used[att[c].token] = true;
		if
		:: att[c].token > newest -> newest = att[c].token
		:: else
		fi;
		over()
	}
}

inline giveUp() {
	STEP {
		att[c].phase != IDLE ->
		printf("client %d: gives up\n", c);
		over()
	}
}

proctype client(byte c) {
	byte i;
	do
	:: begin()
	:: beginAgain()
	EACH_NODE(acquire)
	:: decide()
	EACH_NODE(writeBack)
#ifdef COUNT_UNREAD
	EACH_NODE(writeBackUnread)
#endif
	:: report()
	:: giveUp()
	od
}

/* ---- what happens to a node --------------------------------------------- */

/* A copy of ACQ runs whose reply nobody reads: the reply is lost, or the copy
   is late. Where the first copy's grant has ended, it is granted again. */
inline copyOfAcquire(c) {
	STEP {
		att[c].phase != IDLE && lost != n && holder[n] == NOBODY && counter[n] < K ->
		if
		:: att[c].got[n] != 0 -> SEEN(REGRANT) skip
		:: else
		fi;
		grant(c, n);
		printf("node %d: copy of client %d's acquire, stamp %d\n", n, c, stamp[n])
	}
}

/* RAISE runs and nobody reads the reply. One that raises nothing is left out,
   as is one that is refused (LOST): nothing changes. */
inline copyOfRaise(c) {
	STEP {
		att[c].phase == RAISING && att[c].got[n] != 0 && att[c].got[n] != COUNTED &&
		holder[n] == c && sameGrant(c, n) && counter[n] < att[c].token ->
		raise(n, att[c].token);
		printf("node %d: copy of client %d's raise to %d\n", n, c, counter[n])
	}
}

/* A lease runs out, or a release arrives, however late. */
inline leaseEnds() {
	STEP {
		holder[n] != NOBODY ->
		printf("node %d: lease of %d ends\n", n, holder[n]);
		free(n)
	}
}

/* Any other attempt is granted, also by a late copy of its ACQ. Its stamp is
   of no interest, as its hold is not looked at. */
inline otherAcquires() {
	STEP {
		lost != n && holder[n] == NOBODY && counter[n] < K ->
		counter[n]++; holder[n] = OTHER;
		printf("node %d: grant to another, counter %d\n", n, counter[n])
	}
}

/* A RAISE of any other attempt, or of an earlier round of this one. */
inline otherRaises() {
	STEP {
		holder[n] != NOBODY && counter[n] < K ->
		counter[n]++;
		printf("node %d: raised by another, counter %d\n", n, counter[n])
	}
}

/* A node loses its data; one at a time. It answers nothing until it is
   admitted again. */
inline loseData() {
	STEP {
		lost == NONE ->
		lost = n; counter[n] = 0; free(n);
		SEEN(LOSS)
		printf("node %d: loses its data\n", n)
	}
}

/* Its restore reads the counters of the others, one after the other, once all
   rounds that read a grant of it are over: that is what the wait of the
   longest lease is for. */
inline readCounter() {
	STEP {
		lost != NONE && lost != n && !asked[n] && waited ->
		asked[n] = true;
		if
		:: counter[n] > floor_ -> floor_ = counter[n]
		:: else
		fi;
		printf("node %d: counter %d read for node %d\n", n, counter[n], lost)
	}
}

inline admit() {
	STEP {
		lost == n && asked[0] + asked[1] + asked[2] == 2 ->
#ifndef NO_RESTORE
		counter[n] = floor_;
		if
		:: counter[n] > 0 -> SEEN(RESTORE) skip
		:: else
		fi;
#endif
		lost = NONE; floor_ = 0;
		asked[0] = false; asked[1] = false; asked[2] = false;
		printf("node %d: admitted, counter %d\n", n, counter[n])
	}
}

proctype node(byte n) {
	do
	:: copyOfAcquire(1)
	:: copyOfAcquire(2)
	:: copyOfRaise(1)
	:: copyOfRaise(2)
	:: leaseEnds()
	:: otherAcquires()
	:: otherRaises()
#ifndef NO_LOSS
	:: loseData()
	:: readCounter()
	:: admit()
#endif
	od
}

init {
	atomic {
		att[1].phase = IDLE; att[2].phase = IDLE;
		run client(1); run client(2);
		run node(0); run node(1); run node(2)
	}
}
