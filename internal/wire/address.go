package wire

import (
	"net"
	"net/netip"
	"path"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Address is where a client's server is, in one form for each place; "" if it does
// not show. It does not resolve names: two of them may still lead to one server.
func (d *Deployment) Address() string {
	one, ok := d.rdb.(*redis.Client)
	if !ok {
		return ""
	}
	o := one.Options()
	if o.Network == "unix" {
		return path.Clean(o.Addr)
	}
	host, port, err := net.SplitHostPort(o.Addr)
	if err != nil {
		return "" // of a Sentinel deployment, whose master's name does not show
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	}
	switch host {
	case "", "localhost", "::1": // what is dialed when no host is given is this machine
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}
