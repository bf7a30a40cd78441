/*
 * The token protocol of RedLock: a majority of independent nodes hands out
 * tokens that grow in the order of holds.
 *
 * Three nodes, two of them are a majority, two clients that try for the lock
 * again and again. There is no time: whatever a clock decides happens here at
 * any moment or never. A lease may run out on any node as soon as it is
 * granted, also under a client that is about to be told that it holds. So two
 * clients may well hold at once here: keeping them apart is up to deadlines,
 * which are not modeled. What is checked is what must be true even then:
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
 *   COUNT_PAST    nodes count although their stamp is past the token
 *   NO_RESTORE    a node that lost its data comes back with a counter of zero
 *   NO_WAIT       it comes back while rounds that counted on it still run
 *   NO_CLOCK      with CLOCK: it begins at zero
 * CLOCK is the default mode, without a quarantine: any number of nodes lose their
 * data, and each votes on at once, from its clock on.
 * PROBE asserts that the interesting runs do not exist: it has to fail.
 * SYMMETRY looks at one of the states that differ only in who is who.
 */

#ifdef NO_CLOCK
#define CLOCK
#endif

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
#define GONE 31    /* see got */

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
	byte got[3];   /* 0: no grant read yet; GONE: it may not stand; else    */
	               /* the stamp that was read (G), with COUNTED added if    */
	               /* the counter is known to be at the token (W)           */
	byte token;
	byte before;   /* largest token reported before the round began         */
}
Attempt att[3];

/* What was reported. */
bool used[K + 1];
byte newest;

#define larger(a, b) (a > b -> a : b)
#define highest larger(larger(counter[0], counter[1]), counter[2])
#define votes(c, n) (att[c].got[n] != 0 && att[c].got[n] != GONE)
#define granted(c) (votes(c, 0) + votes(c, 1) + votes(c, 2))
#define isCounted(c, n) (votes(c, n) && att[c].got[n] > COUNTED)
#define counted(c) (isCounted(c, 0) + isCounted(c, 1) + isCounted(c, 2))
#define stampOf(c, n) (att[c].got[n] % COUNTED)
#define past(c, n) (votes(c, n) && stampOf(c, n) > att[c].token)
#define behind(c, n) (votes(c, n) && !isCounted(c, n) && att[c].got[n] < att[c].token)

#ifdef NO_STAMP
#define sameGrant(c, n) true
#else
#define sameGrant(c, n) (stamp[n] == stampOf(c, n))
#endif

#ifdef COUNT_PAST
#define countsPast(c, n) past(c, n)
#else
#define countsPast(c, n) false
#endif

#ifdef NO_RAISE
#define nothingToRaise(c, n) true
#else
#define nothingToRaise(c, n) (stampOf(c, n) == att[c].token || countsPast(c, n))
#endif

#ifdef NO_WAIT
#define waited true
#else
#define waited (!votes(1, lost) && !votes(2, lost))
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
#define RESTORE 32  /* a restore that raised a counter                      */
#define REFUSED 64  /* a RAISE that may not have been run                   */
#define AGAIN 128   /* a second decision, on a higher token                 */
#define ALL 255

/* ---- fewer states ------------------------------------------------------- */

/* The nodes are alike, and so are the clients: states that differ only in who is
   who go on alike. With SYMMETRY, each step ends by giving the names in an order
   that follows from the state, so one state stands for up to twelve. A run that
   is to be read is searched for without it: there each keeps its name. */
#ifdef SYMMETRY
hidden byte t;
hidden mtype:phase p;
hidden byte b;

#define rankOf(n) (((((counter[n] * 4 + holder[n]) * 16 + stamp[n]) * 32 + att[1].got[n]) * 32 + att[2].got[n]) * 4 + asked[n] * 2 + (lost == n))
#define clientRank(c) ((((att[c].phase * 16 + att[c].token) * 16 + att[c].before) * 4 + granted(c)) * 4 + counted(c))

inline swapped(x, y) { t = x; x = y; y = t }

inline swapNodes(m, n) {
	if
	:: rankOf(m) < rankOf(n) ->
		swapped(counter[m], counter[n]);
		swapped(holder[m], holder[n]);
		swapped(stamp[m], stamp[n]);
		swapped(att[1].got[m], att[1].got[n]);
		swapped(att[2].got[m], att[2].got[n]);
		b = asked[m]; asked[m] = asked[n]; asked[n] = b;
		if
		:: lost == m -> lost = n
		:: lost == n -> lost = m
		:: else
		fi
	:: else
	fi
}

inline swapHolder(n) {
	if
	:: holder[n] == 1 -> holder[n] = 2
	:: holder[n] == 2 -> holder[n] = 1
	:: else
	fi
}

inline rename() {
	if
	:: clientRank(1) < clientRank(2) ->
		p = att[1].phase; att[1].phase = att[2].phase; att[2].phase = p;
		swapped(att[1].token, att[2].token);
		swapped(att[1].before, att[2].before);
		swapped(att[1].got[0], att[2].got[0]);
		swapped(att[1].got[1], att[2].got[1]);
		swapped(att[1].got[2], att[2].got[2]);
		swapHolder(0); swapHolder(1); swapHolder(2);
#ifdef PROBE
		seen = (seen & ~(HOLD1 | HOLD2)) | ((seen & HOLD1) << 1) | ((seen & HOLD2) >> 1)
#endif
	:: else
	fi;
	swapNodes(0, 1); swapNodes(1, 2); swapNodes(0, 1);
	t = 0; b = 0; p = IDLE
}
#else
#define rename() skip
#endif

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
		printf("client %d: begins\n", c);
		rename()
	}
}

/* ACQ runs and its reply is read: a grant, or the answer to the first copy,
   if that one was granted (and is still held). BUSY changes nothing. It may be
   read late, when the token has been decided on: the node counts then if it
   needs nothing to be at the token, but not if it is past that. */
inline acquire(n) {
	STEP {
		att[c].phase != IDLE && att[c].got[n] == 0 && lost != n &&
		(holder[n] == c || (holder[n] == NOBODY && counter[n] < K)) ->
		if
		:: holder[n] == NOBODY -> grant(c, n)
		:: else
		fi;
		att[c].got[n] = stamp[n];
		if
		:: att[c].phase == RAISING && nothingToRaise(c, n) -> att[c].got[n] = COUNTED + stamp[n]
		:: else
		fi;
		printf("client %d: reads grant of node %d, stamp %d\n", c, n, stamp[n]);
		rename()
	}
}

/* Enough grants were read: the token is the largest stamp among them, and the
   nodes that are there already need nothing. So again with a higher token, when
   later grants have stamps past the first one. */
inline decide() {
	STEP {
		att[c].phase != IDLE && granted(c) >= QUORUM && (past(c, 0) || past(c, 1) || past(c, 2)) ->
		if
		:: att[c].phase == RAISING -> SEEN(AGAIN) skip
		:: else
		fi;
		for (i : 0 .. 2) {
			if
			:: past(c, i) -> att[c].token = stampOf(c, i)
			:: else
			fi
		}
		for (i : 0 .. 2) {
			if
			:: !votes(c, i) -> skip
			:: votes(c, i) && nothingToRaise(c, i) -> att[c].got[i] = COUNTED + stampOf(c, i)
			:: votes(c, i) && !nothingToRaise(c, i) -> att[c].got[i] = stampOf(c, i)
			fi
		}
		i = 0;
		att[c].phase = RAISING;
		printf("client %d: decides on token %d\n", c, att[c].token);
		rename()
	}
}

/* RAISE runs on a node whose grant was read, and its reply is read. */
inline writeBack(n) {
	STEP {
		att[c].phase == RAISING && behind(c, n) && holder[n] == c && sameGrant(c, n) ->
		raise(n, att[c].token);
		att[c].got[n] = COUNTED + att[c].got[n];
		printf("client %d: raises node %d to %d\n", c, n, att[c].token);
		rename()
	}
}

/* RAISE is refused, or nobody knows: the grant does not count any more, and
   the node is not asked for another one in this try. */
inline refused(n) {
	STEP {
		att[c].phase == RAISING && behind(c, n) ->
		att[c].got[n] = GONE;
		SEEN(REFUSED)
		printf("client %d: may not have raised node %d\n", c, n);
		rename()
	}
}

/* The same on a node whose grant was not read, so without a stamp. */
inline writeBackUnread(n) {
	STEP {
		att[c].phase == RAISING && att[c].got[n] == 0 && holder[n] == c ->
		raise(n, att[c].token);
		att[c].got[n] = COUNTED + att[c].token;
		printf("client %d: raises node %d to %d, its grant not read\n", c, n, att[c].token);
		rename()
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
		over();
		rename()
	}
}

inline giveUp() {
	STEP {
		att[c].phase != IDLE ->
		printf("client %d: gives up\n", c);
		over();
		rename()
	}
}

proctype client(byte c) {
	byte i;
	do
	:: begin()
	EACH_NODE(acquire)
	:: decide()
	EACH_NODE(writeBack)
	EACH_NODE(refused)
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
		:: votes(c, n) -> SEEN(REGRANT) skip
		:: else
		fi;
		grant(c, n);
		printf("node %d: copy of client %d's acquire, stamp %d\n", n, c, stamp[n]);
		rename()
	}
}

/* A lease runs out, or a release arrives, however late. */
inline leaseEnds() {
	STEP {
		holder[n] != NOBODY ->
		printf("node %d: lease of %d ends\n", n, holder[n]);
		free(n);
		rename()
	}
}

/* Any other attempt is granted, also by a late copy of its ACQ. Its stamp is
   of no interest, as its hold is not looked at. */
inline otherAcquires() {
	STEP {
		lost != n && holder[n] == NOBODY && counter[n] < K ->
		counter[n]++; holder[n] = OTHER;
		printf("node %d: grant to another, counter %d\n", n, counter[n]);
		rename()
	}
}

/* A counter grows: by a RAISE of whatever attempt whose reply nobody reads, or by
   a release, which raises it to the token of its hold whoever has the vote, also on
   a node that is not admitted. */
inline raisedElsewhere() {
	STEP {
		counter[n] < K ->
		counter[n]++;
		printf("node %d: raised, counter %d\n", n, counter[n]);
		rename()
	}
}

#ifdef CLOCK
/* A node loses its data, and begins at its clock, which is not below any counter
   that a node ever had: none is ever lowered here, so the highest is still there. */
inline loseData() {
	STEP {
		holder[n] != NOBODY || counter[n] < highest ->
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
#else
/* A node loses its data; one at a time. It answers nothing until it is
   admitted again. */
inline loseData() {
	STEP {
		lost == NONE ->
		lost = n; counter[n] = 0; free(n);
		SEEN(LOSS)
		printf("node %d: loses its data\n", n);
		rename()
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
		printf("node %d: counter %d read for node %d\n", n, counter[n], lost);
		rename()
	}
}

inline admit() {
	STEP {
		lost == n && asked[0] + asked[1] + asked[2] == 2 ->
#ifndef NO_RESTORE
		if
		:: counter[n] < floor_ -> counter[n] = floor_; SEEN(RESTORE)
		:: else
		fi;
#endif
		lost = NONE; floor_ = 0;
		asked[0] = false; asked[1] = false; asked[2] = false;
		printf("node %d: admitted, counter %d\n", n, counter[n]);
		rename()
	}
}
#endif

proctype node(byte n) {
	do
	:: copyOfAcquire(1)
	:: copyOfAcquire(2)
	:: leaseEnds()
	:: otherAcquires()
	:: raisedElsewhere()
#ifndef NO_LOSS
	:: loseData()
#ifndef CLOCK
	:: readCounter()
	:: admit()
#endif
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
