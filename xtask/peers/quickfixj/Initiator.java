import java.io.*;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import quickfix.*;
import quickfix.field.*;

/** An initiator of QuickFIX/J: follows the book, trades, loses its connection, misses a fill, and recovers it. */
public class Initiator extends ApplicationAdapter {
    static final BlockingQueue<Message> reports = new LinkedBlockingQueue<>();
    static final BlockingQueue<Message> market = new LinkedBlockingQueue<>();
    static final BlockingQueue<SessionID> logons = new LinkedBlockingQueue<>();

    @Override public void onLogon(SessionID id) { logons.add(id); }
    @Override public void fromApp(Message message, SessionID id) throws FieldNotFound {
        String type = message.getHeader().getString(MsgType.FIELD);
        (List.of("W", "X", "Y").contains(type) ? market : reports).add(message);
    }

    static final List<Message> seen = new ArrayList<>();

    /** The first report of an order with this ExecType that was not awaited before. */
    static Message await(String client, char exec) throws Exception {
        for (;;) {
            for (Message message : seen) {
                if (message.getString(ClOrdID.FIELD).equals(client) && message.getChar(ExecType.FIELD) == exec) {
                    seen.remove(message);
                    return message;
                }
            }
            Message message = reports.poll(20, TimeUnit.SECONDS);
            if (message == null || !message.getHeader().getString(MsgType.FIELD).equals("8"))
                throw new IllegalStateException("no report " + exec + " of " + client + ": " + message);
            seen.add(message);
        }
    }

    static void order(SessionID id, String client, char side, int quantity, String price) throws Exception {
        Message order = new Message();
        order.getHeader().setString(MsgType.FIELD, "D");
        order.setString(ClOrdID.FIELD, client);
        order.setString(Symbol.FIELD, "JAVA");
        order.setChar(Side.FIELD, side);
        order.setInt(OrderQty.FIELD, quantity);
        order.setChar(OrdType.FIELD, '2');
        order.setDecimal(Price.FIELD, new java.math.BigDecimal(price));
        order.setUtcTimeStamp(TransactTime.FIELD, java.time.LocalDateTime.now(java.time.ZoneOffset.UTC), true);
        quickfix.Session.sendToTarget(order, id);
    }

    /** Asks for all levels of both sides, and what changes. */
    static void subscribe(SessionID id) throws Exception {
        Message request = new Message();
        request.getHeader().setString(MsgType.FIELD, "V");
        request.setString(MDReqID.FIELD, "levels");
        request.setChar(SubscriptionRequestType.FIELD, '1');
        request.setInt(MarketDepth.FIELD, 0);
        request.setInt(MDUpdateType.FIELD, 1);
        for (char side : new char[] {'0', '1'}) {
            Group type = new Group(NoMDEntryTypes.FIELD, MDEntryType.FIELD);
            type.setChar(MDEntryType.FIELD, side);
            request.addGroup(type);
        }
        Group symbol = new Group(NoRelatedSym.FIELD, Symbol.FIELD);
        symbol.setString(Symbol.FIELD, "JAVA");
        request.addGroup(symbol);
        quickfix.Session.sendToTarget(request, id);
    }

    /** The next message of market data, of this type, with so many entries; the first one as text. */
    static Group entry(String type, int entries) throws Exception {
        Message message = market.poll(20, TimeUnit.SECONDS);
        if (message == null || !message.getHeader().getString(MsgType.FIELD).equals(type)
                || message.getInt(NoMDEntries.FIELD) != entries)
            throw new IllegalStateException("no " + type + " with " + entries + " entries: " + message);
        return entries == 0 ? null : message.getGroup(1, NoMDEntries.FIELD);
    }

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[0]);
        SessionID alice = new SessionID("FIX.4.4", "ALICE", "NEARMETAL");
        SessionID bob = new SessionID("FIXT.1.1", "BOB", "NEARMETAL");
        SessionSettings settings = new SessionSettings();
        settings.setString("ConnectionType", "initiator");
        settings.setString("SocketConnectHost", "127.0.0.1");
        settings.setString("SocketConnectPort", "" + port);
        settings.setString("StartTime", "00:00:00");
        settings.setString("EndTime", "00:00:00");
        settings.setString("HeartBtInt", "30");
        settings.setString("ReconnectInterval", "1");
        settings.setString("ValidateUserDefinedFields", "Y");
        for (SessionID id : List.of(alice, bob)) {
            settings.setString(id, "BeginString", id.getBeginString());
            settings.setString(id, "SenderCompID", id.getSenderCompID());
            settings.setString(id, "TargetCompID", id.getTargetCompID());
        }
        settings.setString(alice, "DataDictionary", "FIX44.xml");
        settings.setString(bob, "DefaultApplVerID", "FIX.5.0SP2");
        settings.setString(bob, "TransportDataDictionary", "FIXT11.xml");
        settings.setString(bob, "AppDataDictionary", "FIX50SP2.xml");
        SocketInitiator initiator = new SocketInitiator(new Initiator(), new MemoryStoreFactory(), settings,
            new ScreenLogFactory(true, true, true), new DefaultMessageFactory());
        initiator.start();
        for (int at = 0; at < 2; at++) if (logons.poll(20, TimeUnit.SECONDS) == null) throw new IllegalStateException("no logon");
        subscribe(bob);
        entry("W", 0);
        order(alice, "q1", '1', 100, "10.25");
        await("q1", '0');
        Group bid = entry("X", 1);
        if (bid.getChar(MDUpdateAction.FIELD) != '0' || bid.getChar(MDEntryType.FIELD) != '0'
                || !bid.getDecimal(MDEntryPx.FIELD).equals(new java.math.BigDecimal("10.25"))
                || bid.getDecimal(MDEntrySize.FIELD).intValue() != 100)
            throw new IllegalStateException("" + bid);
        order(bob, "p1", '2', 40, "10.25");
        Message fill = await("p1", 'F');
        if (!fill.getDecimal(LastPx.FIELD).equals(new java.math.BigDecimal("10.25"))) throw new IllegalStateException("price");
        await("q1", 'F');
        bid = entry("X", 1);
        if (bid.getChar(MDUpdateAction.FIELD) != '1' || bid.getDecimal(MDEntrySize.FIELD).intValue() != 60)
            throw new IllegalStateException("" + bid);
        // Alice is away while the rest of her order trades.
        quickfix.Session.lookupSession(alice).disconnect("test", false);
        order(bob, "p2", '2', 60, "10.25");
        await("p2", 'F');
        if (logons.poll(20, TimeUnit.SECONDS) == null) throw new IllegalStateException("no second logon");
        Message rest = await("q1", 'F');
        if (!rest.getHeader().isSetField(PossDupFlag.FIELD)) throw new IllegalStateException("no resend");
        if (rest.getDecimal(LeavesQty.FIELD).signum() != 0) throw new IllegalStateException("" + rest);
        initiator.stop();
        System.out.println("done");
    }
}
