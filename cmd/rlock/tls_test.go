//go:build unix

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/loopback"
	"github.com/go-rlock/rlock/internal/redistest"
)

// A URL with rediss:// is for TLS, and the certificate counts.
func TestTLS(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	addr, certificate := behindTLS(t, srv.Addr())
	tl := toolAt(t, "rediss://"+addr)
	write(t, tl.path("ca.pem"), certificate)
	for _, args := range []string{"-n a true", "--connect-timeout 6 a true"} {
		has(t, tl.want(exitUnavailable, strings.Fields(args)...).err, "certificate", addr)
	}
	tl.with("SSL_CERT_FILE="+tl.path("ca.pem")).want(0, "-n", "a", "true")
	tl.want(0, "--redis", "rediss://"+addr+"?skip_verify=true", "-n", "a", "true")
	// Redis closes a connection that does not begin with a handshake.
	has(t, tl.want(exitUnavailable, "--redis", "redis://"+addr, "--connect-timeout", "6", "a", "true").err, "with TLS")
}

// behindTLS is the address of a server with TLS in front of another one, and its certificate.
func behindTLS(t *testing.T, to string) (addr, certificate string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := loopback.Listen()
	if err != nil {
		t.Fatal(err)
	}
	listener := tls.NewListener(plain, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	t.Cleanup(func() { listener.Close() })
	go func() { // until it is closed
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				if conn.(*tls.Conn).HandshakeContext(t.Context()) != nil {
					_ = conn.(*tls.Conn).NetConn().Close()
					return
				}
				forward(conn, to)
			}()
		}
	}()
	return plain.Addr().String(), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func forward(conn net.Conn, to string) {
	defer conn.Close()
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(conn, server)
		conn.Close()
	}()
	_, _ = io.Copy(server, conn)
}
