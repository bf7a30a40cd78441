package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const quorum = 2

// Sentinel is a master with two replicas, watched by three sentinels. Master
// and Replicas hold the roles at the start, see [Sentinel.CurrentMaster].
type Sentinel struct {
	Replicated
	Sentinels  []*Server
	MasterName string
}

// StartSentinel runs the six processes and returns when all sentinels know
// each other and both replicas. A master that does not answer for a second is
// failed over by two of them; [Sentinel.Failover] does so on demand.
//
// After [Sentinel.Failover] the old master, which was well, takes writes for
// about four seconds more, until the sentinels turn it into a replica. With the
// defaults of Sentinel that are eight seconds.
func StartSentinel(t testing.TB) *Sentinel {
	t.Helper()
	s := &Sentinel{Replicated: *StartReplicated(t, 2), MasterName: "mymaster"}
	s.Sentinels = startAll(t, 3, sentinelArgs)
	for _, o := range s.Sentinels {
		if err := s.monitor(o); err != nil {
			t.Fatal(err)
		}
	}
	s.Settle()
	for _, o := range s.Sentinels {
		if err := s.periods(o, "publish-period", 1000); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// periods sets how often a sentinel looks. Before Redis 7 that is as it is, and a start takes ten seconds.
func (s *Sentinel) periods(o *Server, args ...any) error {
	if isOld() {
		return nil
	}
	if err := o.do(append([]any{"sentinel", "debug"}, args...)...).Err(); err != nil {
		return fmt.Errorf("redistest: configuring sentinel %s: %v: %w", o.Addr(), args, err)
	}
	return nil
}

// sentinelArgs names an empty configuration file: a sentinel does not start
// without one that it can rewrite. The rest comes from [Sentinel.monitor], and
// after a restart from what the sentinel itself has written.
func sentinelArgs(s *Server) []string {
	conf := filepath.Join(s.dir, "sentinel.conf")
	if _, err := os.Stat(conf); errors.Is(err, os.ErrNotExist) {
		// If this fails, the sentinel's log says that the file is missing.
		_ = os.WriteFile(conf, nil, 0o600)
	}
	return append([]string{conf, "--sentinel"}, s.listen()...)
}

func (s *Sentinel) monitor(o *Server) error {
	// Discovery takes some rounds of these, which are ten and two seconds
	// by default. The second is raised again after the start: four of it
	// is how long a sentinel lets a replica call itself master before it
	// takes it for a mistake, and that must cover the second that the
	// leader of a failover needs to see and announce the promotion.
	if err := s.periods(o, "info-period", 100, "publish-period", 100); err != nil {
		return err
	}
	for _, cmd := range [][]any{
		{"sentinel", "monitor", s.MasterName, "127.0.0.1", s.Master.Port(), quorum},
		{"sentinel", "set", s.MasterName, "down-after-milliseconds", 1000},
		// Also half the time before a second attempt at a failed failover.
		{"sentinel", "set", s.MasterName, "failover-timeout", 3000},
		{"sentinel", "set", s.MasterName, "parallel-syncs", 2},
	} {
		if err := o.do(cmd...).Err(); err != nil {
			return fmt.Errorf("redistest: configuring sentinel %s: %v: %w", o.Addr(), cmd, err)
		}
	}
	return nil
}

// Client connects a new failover client with go-redis defaults, which edit may
// change. It is closed when the test ends, before the servers are killed.
func (s *Sentinel) Client(edit ...func(*redis.FailoverOptions)) *redis.Client {
	opts := &redis.FailoverOptions{MasterName: s.MasterName}
	for _, o := range s.Sentinels {
		opts.SentinelAddrs = append(opts.SentinelAddrs, o.Addr())
	}
	for _, e := range edit {
		e(opts)
	}
	c := redis.NewFailoverClient(opts)
	s.Master.t.Cleanup(func() { _ = c.Close() })
	return c
}

// CurrentMaster is the server that a majority of the sentinels names as
// master, which may be dead while they have not noticed yet.
func (s *Sentinel) CurrentMaster() *Server {
	t := s.Master.t
	t.Helper()
	var master *Server
	err := await("a majority of the sentinels to name one master", func() (err error) {
		master, err = s.elected(len(s.Sentinels)/2 + 1)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return master
}

// Failover makes the sentinels promote a replica while the master is well
// (SENTINEL FAILOVER). It returns when all of them name the new master and it
// accepts writes. The old one may take writes for a little longer, as it may
// in production; [Sentinel.Settle] waits for the end of that.
func (s *Sentinel) Failover() {
	t := s.Master.t
	t.Helper()
	old := s.CurrentMaster()
	var asked time.Time
	err := await("a failover away from "+old.Addr(), func() error {
		// Asked again when the sentinel gave up, which a loaded machine can
		// cause. Only one that still names the old master may be asked: the
		// others would fail over from the new one.
		if o := s.naming(old); o != nil && time.Since(asked) > 5*time.Second {
			// Refused while no replica is fit or the last failover not over.
			err := o.do("sentinel", "failover", s.MasterName).Err()
			if err != nil && !strings.HasPrefix(err.Error(), "INPROG") {
				return err
			}
			asked = time.Now()
		}
		master, err := s.elected(s.running())
		if err != nil {
			return err
		}
		if master == old {
			return fmt.Errorf("the sentinels still name %s", old.Addr())
		}
		return writable(master)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Settle waits until the sentinels that run agree on a writable master and
// know each other, and every other data server that runs is its online
// replica.
func (s *Sentinel) Settle() {
	t := s.Master.t
	t.Helper()
	err := await("the sentinels to settle", func() error {
		master, err := s.elected(s.running())
		if err != nil {
			return err
		}
		if err := writable(master); err != nil {
			return err
		}
		replicas := 0
		for _, d := range s.data() {
			if d == master || !d.alive() {
				continue
			}
			if err := online(master, d); err != nil {
				return err
			}
			replicas++
		}
		for _, o := range s.Sentinels {
			if o.alive() {
				if err := s.sees(o, replicas); err != nil {
					return fmt.Errorf("sentinel %s: %w", o.Addr(), err)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// sees checks one sentinel's view: the master, the replicas and the other
// sentinels are up and fully known.
func (s *Sentinel) sees(o *Server, replicas int) error {
	ctx := context.Background()
	if err := o.do("sentinel", "ckquorum", s.MasterName).Err(); err != nil {
		return err
	}
	for _, want := range []struct {
		list, flags string
		n           int
	}{
		{"replicas", "slave", replicas},
		{"sentinels", "sentinel", s.running() - 1},
	} {
		list := redis.NewMapStringStringSliceCmd(ctx, "sentinel", want.list, s.MasterName)
		if err := o.run(list); err != nil {
			return err
		}
		up := 0
		for _, peer := range list.Val() {
			// Other flags mean down, disconnected or being reconfigured. But master_down is what a sentinel said of the master
			// before a failover: with Valkey it stays. That all name a master that is up is asked above.
			if strings.TrimSuffix(peer["flags"], ",master_down") != want.flags || peer["runid"] == "" {
				continue
			}
			if status, ok := peer["master-link-status"]; ok && status != "ok" {
				continue
			}
			up++
		}
		if up != want.n {
			return fmt.Errorf("sees %d %s, want %d: %v", up, want.list, want.n, list.Val())
		}
	}
	return nil
}

// elected is the data server that at least need sentinels name as master.
func (s *Sentinel) elected(need int) (*Server, error) {
	votes := map[string]int{}
	var state []string
	for _, o := range s.Sentinels {
		if !o.alive() {
			continue
		}
		addr, err := o.do("sentinel", "get-master-addr-by-name", s.MasterName).StringSlice()
		if err != nil || len(addr) != 2 {
			state = append(state, fmt.Sprintf("%s: %v %v", o.Addr(), addr, err))
			continue
		}
		votes[addr[1]]++
		state = append(state, fmt.Sprintf("%s names %s", o.Addr(), addr[1]))
	}
	for _, d := range s.data() {
		if n := votes[strconv.Itoa(d.Port())]; n > 0 && n >= need {
			return d, nil
		}
	}
	return nil, errors.New(strings.Join(state, "; "))
}

// naming is the first sentinel that runs, if it names this master.
func (s *Sentinel) naming(master *Server) *Server {
	for _, o := range s.Sentinels {
		if o.alive() {
			addr, err := o.do("sentinel", "get-master-addr-by-name", s.MasterName).StringSlice()
			if err == nil && len(addr) == 2 && addr[1] == strconv.Itoa(master.Port()) {
				return o
			}
			return nil
		}
	}
	return nil
}

// running counts the sentinels that run.
func (s *Sentinel) running() int {
	n := 0
	for _, o := range s.Sentinels {
		if o.alive() {
			n++
		}
	}
	return n
}

func (s *Sentinel) data() []*Server { return append([]*Server{s.Master}, s.Replicas...) }

// writable asks a server to delete a key that is not there: a write by its
// flags, so a replica refuses it, that changes and replicates nothing.
func writable(s *Server) error {
	if err := s.do("del", "redistest:no-such-key").Err(); err != nil {
		return fmt.Errorf("%s refuses a write: %w", s.Addr(), err)
	}
	return nil
}
