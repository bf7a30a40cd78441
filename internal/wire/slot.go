package wire

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Slots is the number of hash slots of a Redis Cluster.
const Slots = 16384

// Slot is Redis Cluster's hash slot of a key: CRC16 (XMODEM) of the hash tag, or of
// the whole key if it has none.
func Slot(key string) int {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if end := strings.IndexByte(key[open+1:], '}'); end > 0 {
			key = key[open+1 : open+1+end]
		}
	}
	var crc uint16
	for i := range len(key) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^key[i]]
	}
	return int(crc) % Slots
}

// Carrier returns the node of a sharded channel: a name, and the client to subscribe with.
func (d *Deployment) Carrier(ctx context.Context, channel string) (name string, node redis.UniversalClient, err error) {
	if d.cluster == nil {
		name, err = d.masterOf(ctx, Slot(channel))
		return name, d.io, err
	}
	if node, err = d.NodeFor(ctx, channel); err != nil {
		return "", nil, err
	}
	return node.(*redis.Client).Options().Addr, node, nil
}

// masterOf returns a name for the node that serves a slot. A wrapper of a cluster client does not show its nodes, so
// masterOf requests the slots of the cluster. Subscriptions with the same name share a connection: go-redis finds the node
// by the first channel. Without a reply of the cluster, each slot has its own name.
func (d *Deployment) masterOf(ctx context.Context, slot int) (name string, err error) {
	all := d.slots.Load()
	if all == nil {
		ctx, cancel := context.WithTimeout(ctx, d.cfg.CommandTimeout)
		defer cancel()
		var found []redis.ClusterSlot
		err := d.Safely(func() (err error) {
			found, err = d.io.ClusterSlots(ctx).Result()
			return err
		})
		if err != nil && !IsReply(err) {
			return "", err
		}
		all = &found
		d.slots.Store(all)
	}
	for _, r := range *all {
		if r.Start <= slot && slot <= r.End && len(r.Nodes) > 0 {
			return "master " + cmp.Or(r.Nodes[0].ID, r.Nodes[0].Addr), nil
		}
	}
	return fmt.Sprint("slot ", slot), nil
}

var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()
