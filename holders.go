package rlock

import "github.com/go-rlock/rlock/internal/wire"

// servers are those on which the clients of a lock introduce themselves.
func (l *core) servers() []*wire.Deployment {
	if several, ok := l.asks.(interface{ Wires() []*wire.Deployment }); ok {
		return several.Wires()
	}
	return []*wire.Deployment{l.c.wire}
}

// nameHolders adds the processes of holders, as far as they can be had soon.
func (l *core) nameHolders(holders []Holder) {
	if l.c.whois == nil || len(holders) == 0 {
		return
	}
	var servers []*wire.Deployment
	if l.c.begin() { // the questions end before the client does
		defer l.c.end()
		servers = l.servers()
	}
	l.c.whois.name(holders, servers)
}

// nameHolder finds out whose hold was seen.
func (l *core) nameHolder(seen *sight) {
	if seen.holder == "" || seen.err != nil {
		return
	}
	one := []Holder{{HoldID: seen.holder}}
	if l.nameHolders(one); one[0].Process != (Process{}) {
		seen.who = &one[0].Process
	}
}
