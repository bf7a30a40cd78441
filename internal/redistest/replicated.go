package redistest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// Replicated is a master with replicas. The fields hold the roles at the
// start; a test that promotes a replica has to remember so itself.
type Replicated struct {
	Master   *Server
	Replicas []*Server
}

// StartReplicated runs a master and its replicas, all with the same extra
// arguments, and returns when every replica is online.
func StartReplicated(t testing.TB, replicas int, args ...string) *Replicated {
	t.Helper()
	r := &Replicated{Master: Start(t, args...)}
	follow := append([]string{"--replicaof", "127.0.0.1", strconv.Itoa(r.Master.Port())}, args...)
	r.Replicas = startAll(t, replicas, plain(follow...))
	r.Settle()
	return r
}

// Settle waits until every replica that runs is online, for tests that restart
// one.
func (r *Replicated) Settle() {
	t := r.Master.t
	t.Helper()
	err := await("the replicas to be online", func() error {
		for _, s := range r.Replicas {
			if !s.alive() {
				continue
			}
			if err := online(r.Master, s); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// online asks both ends. The replica's link is up as soon as it has loaded the
// data; the master sends it writes, and counts it in WAIT, only after the
// replica's first acknowledgment.
func online(master, replica *Server) error {
	info, err := replica.do("info", "replication").Text()
	if err != nil {
		return fmt.Errorf("replica %s: %w", replica.Addr(), err)
	}
	if port := field(info, "master_port"); port != strconv.Itoa(master.Port()) {
		return fmt.Errorf("%s has role %s and master port %q, want a replica of %s", replica.Addr(), field(info, "role"), port, master.Addr())
	}
	if link := field(info, "master_link_status"); link != "up" {
		return fmt.Errorf("replica %s: master_link_status is %q", replica.Addr(), link)
	}
	info, err = master.do("info", "replication").Text()
	if err != nil {
		return fmt.Errorf("master %s: %w", master.Addr(), err)
	}
	for line := range strings.Lines(info) {
		// slave0:ip=127.0.0.1,port=41337,state=online,offset=14,lag=0
		if strings.HasPrefix(line, "slave") && strings.Contains(line, fmt.Sprintf(",port=%d,state=online,", replica.Port())) {
			return nil
		}
	}
	return fmt.Errorf("master %s does not see %s online:\n%s", master.Addr(), replica.Addr(), info)
}
