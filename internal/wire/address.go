package wire

import (
	"net"
	"net/netip"
	"path"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Address returns the address of the server in a canonical form, or "" if the client does not show it.
// It does not resolve names: two addresses may still lead to one server.
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
		return "" // a Sentinel deployment: the client does not show the master's address
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	}
	switch host {
	case "", "localhost", "::1": // without a host go-redis dials this machine
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}
