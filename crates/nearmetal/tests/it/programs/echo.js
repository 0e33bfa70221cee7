// An echo server and a client that compares what comes back, with Node's net module.
'use strict';
const net = require('net');
const crypto = require('crypto');
const [role, port] = [process.argv[2], Number(process.argv[3])];

if (role === 'server') {
  const server = net.createServer({ allowHalfOpen: true }, (socket) => {
    socket.on('error', () => socket.destroy());
    socket.pipe(socket);
  });
  server.listen(port, '127.0.0.1');
} else if (role === 'rate') {
  rate(Number(process.argv[4]), 1000).then(console.log);
} else {
  run().catch((error) => { console.error(error); process.exit(1); });
}

async function run() {
  console.log('pingpong', await pingpong(3000));
  const bulk = await Promise.all(Array.from({ length: 8 }, (_, index) => transfer(index)));
  for (const line of bulk) console.log(line);
  console.log('refused', await refused());
}

function pingpong(rounds) {
  return new Promise((resolve, reject) => {
    const hash = crypto.createHash('sha256');
    let round = 0;
    let waiting = 0;
    const socket = net.connect(port, '127.0.0.1');
    socket.setNoDelay(true);
    const send = () => {
      const message = Buffer.alloc(1 + (round * 37) % 2000, round & 255);
      waiting = message.length;
      socket.write(message);
    };
    socket.on('connect', send);
    socket.on('data', (data) => {
      hash.update(data);
      waiting -= data.length;
      if (waiting < 0) reject(new Error('more came back than was sent'));
      if (waiting > 0) return;
      round += 1;
      if (round === rounds) socket.end(); else send();
    });
    socket.on('error', reject);
    socket.on('close', () => resolve(hash.digest('hex')));
  });
}

// Round trips a second of several connections together.
async function rate(connections, milliseconds) {
  const begin = performance.now();
  const one = () => new Promise((resolve, reject) => {
    const message = Buffer.alloc(64, 1);
    let [count, waiting] = [0, 0];
    const socket = net.connect(port, '127.0.0.1');
    socket.setNoDelay(true);
    const send = () => { waiting = message.length; socket.write(message); };
    socket.on('connect', send);
    socket.on('data', (data) => {
      waiting -= data.length;
      if (waiting > 0) return;
      count += 1;
      if (performance.now() - begin < milliseconds) send(); else socket.end();
    });
    socket.on('error', reject);
    socket.on('close', () => resolve(count));
  });
  const counts = await Promise.all(Array.from({ length: connections }, one));
  return counts.reduce((sum, count) => sum + count, 0) / (performance.now() - begin) * 1000;
}

function transfer(index) {
  return new Promise((resolve, reject) => {
    const hash = crypto.createHash('sha256');
    let received = 0;
    const block = Buffer.alloc(100003, index + 1);
    const socket = net.connect({ port, host: '127.0.0.1', allowHalfOpen: true });
    let left = 40;
    const pump = () => {
      while (left > 0) {
        left -= 1;
        if (!socket.write(block)) { socket.once('drain', pump); return; }
      }
      socket.end();
    };
    socket.on('connect', pump);
    socket.on('data', (data) => { received += data.length; hash.update(data); });
    socket.on('error', reject);
    socket.on('close', () => resolve(`bulk ${index} ${received} ${hash.digest('hex')}`));
  });
}

function refused() {
  return new Promise((resolve) => {
    const socket = net.connect(1, '127.0.0.1');
    socket.on('error', (error) => resolve(error.code));
    socket.on('connect', () => resolve('connected'));
  });
}
