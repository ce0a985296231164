// An engine: runs the loaded program for each sample, an instruction after another. Instructions are 32 words of 32
// bits, laid out as in stoker's instructions.py; what their kinds do is said there. A model is loaded into the banks
// that are not in use, and takes over between two samples.
module engine #(
    parameter int LANES = 8,
    parameter int DATA_WORDS = 1024,
    parameter int WEIGHT_WORDS = 512,
    parameter int TABLE_WORDS = 1024,
    parameter int SCALE_WORDS = 256,
    parameter int INSTRUCTIONS = 128,
    parameter logic [31:0] LIMIT = 100000
) (
    input  logic                clk,
    input  logic                rst,
    input  logic [LANES*16-1:0] in_data,
    input  logic                in_valid,
    output logic                in_ready,
    input  logic                in_last,
    output logic [LANES*16-1:0] out_data,
    output logic                out_valid,
    input  logic                out_ready,
    output logic                out_last,
    input  logic [7:0]          s_axi_awaddr,
    input  logic                s_axi_awvalid,
    output logic                s_axi_awready,
    input  logic [31:0]         s_axi_wdata,
    input  logic                s_axi_wvalid,
    output logic                s_axi_wready,
    output logic [1:0]          s_axi_bresp,
    output logic                s_axi_bvalid,
    input  logic                s_axi_bready,
    input  logic [7:0]          s_axi_araddr,
    input  logic                s_axi_arvalid,
    output logic                s_axi_arready,
    output logic [31:0]         s_axi_rdata,
    output logic [1:0]          s_axi_rresp,
    output logic                s_axi_rvalid,
    input  logic                s_axi_rready
);
    localparam int LW = $clog2(LANES);
    localparam int A_W = 20;
    localparam int ACC_W = 35;
    localparam int M_W = 16;
    localparam int X_W = 9;
    localparam int WEIGHT_W = 8;
    localparam int TREE_W = X_W + WEIGHT_W + LW;
    localparam int SCALE_W = LANES * (ACC_W + M_W);
    // Words of the bus in a word of each memory.
    localparam int PROGRAM_SLICES = 4;
    localparam int WEIGHT_SLICES = (LANES * LANES * WEIGHT_W + 31) / 32;
    localparam int TABLE_SLICES = (LANES * 18 + 31) / 32;
    localparam int SCALE_SLICES = (SCALE_W + 31) / 32;
    localparam int LOAD_W = 32 * ((WEIGHT_SLICES > SCALE_SLICES) ? WEIGHT_SLICES : SCALE_SLICES);
    localparam int FETCHES = 8;
    localparam int PROGRAM_WORDS = INSTRUCTIONS * FETCHES;
    localparam int PW = $clog2(PROGRAM_WORDS);
    localparam int LAW = 8;                // registers of the requantiser
    localparam int PLACES = 32;            // words that may be on their way

    // Control: an instruction is fetched, runs, and its last result is written before the next one is fetched.
    typedef enum logic [2:0] {WAITS, FETCH, START, RUN, DRAIN, ROWS} state_t;
    state_t state;
    logic [1023:0] code;
    logic [PW-1:0] at;
    logic [3:0] fetched;
    logic pending, bank, loaded, switched;
    logic [3:0] load_write;
    logic [19:0] load_address;
    logic [LOAD_W-1:0] load_data;
    logic [127:0] program_word;

    logic [2:0] kind;
    logic array, largest, unsigned_a, unsigned_b, last_word, end_program;
    logic [1:0] first_kind, second_kind, lookup;
    logic [2:0] reduce, tail_level;
    logic [4:0] full, tail;
    logic [5:0] shift;
    logic [17:0] zero_a, zero_b, zero, low, high;
    logic [A_W-1:0] table_base;
    logic [15:0] table_row;
    assign {end_program, last_word, tail, full, tail_level, reduce, unsigned_b, unsigned_a, lookup, second_kind,
            first_kind, largest, array, kind} = code[30:0];
    assign shift = code[32 +: 6];
    assign zero_a = code[40 +: 18];
    assign zero_b = code[64 +: 18];
    assign zero = code[96 +: 18];
    assign low = code[128 +: 18];
    assign high = code[160 +: 18];
    assign table_base = code[192 +: A_W];
    assign table_row = code[224 +: 16];

    localparam logic [2:0] INPUT = 3'd1, OUTPUT = 3'd2, NORMAL = 3'd4;
    logic enters, leaves, is_rows, rows_busy;
    assign enters = kind == INPUT;
    assign leaves = kind == OUTPUT;
    assign is_rows = kind >= 3'd3;

    logic step, first, last, short_word, ends, room, on_way;
    logic [A_W-1:0] a, b, c, p;
    logic [LW:0] count;
    assign step = state == RUN && (enters ? in_valid : (!leaves || room));
    assign in_ready = state == RUN && enters;
    assign count = short_word ? tail[LW:0] : full[LW:0];
    assign switched = state == WAITS && pending;

    always_ff @(posedge clk) begin
        case (state)
            WAITS: if (!pending && loaded && in_valid) begin
                at <= '0;
                fetched <= '0;
                state <= FETCH;
            end
            FETCH: begin
                at <= (fetched < 4'(FETCHES)) ? at + 1'b1 : at;
                fetched <= fetched + 1'b1;
                if (fetched != '0) code <= {program_word, code[1023:128]};
                if (fetched == 4'(FETCHES)) state <= START;
            end
            START: state <= is_rows ? ROWS : RUN;
            RUN: if (step && ends) state <= DRAIN;
            DRAIN, ROWS: if (!on_way && !rows_busy) begin
                fetched <= '0;
                state <= end_program ? WAITS : FETCH;
            end
            default: state <= WAITS;
        endcase
        if (rst) state <= WAITS;
    end

    engine_nest #(.LEVELS(7), .ADDRESS_W(A_W), .COUNT_W(16)) nest (
        .clk, .start(state == START), .step, .loops(code[352 +: 672]), .bases(code[256 +: 80]), .reduce, .tail_level,
        .a, .b, .c, .p, .first, .last, .short_word, .ends
    );

    // Nests: cycle 0 is the step. Numbers come in cycle 7, three after their address; tables and weights by then, too.
    logic begins;
    logic [6:0] valids, firsts, lasts;
    logic [4:0][A_W-1:0] a_later, b_later;
    logic [A_W-1:0] a_address, b_address, rows_address, table_at, weight_at;
    logic [LANES*16-1:0] x, y;
    logic signed [17:0] x_0, y_0, index;
    assign begins = step && !enters;
    assign a_later[0] = a;
    assign b_later[0] = b;
    always_ff @(posedge clk) begin
        valids <= rst ? '0 : {valids[5:0], begins};
        firsts <= {firsts[5:0], first};
        lasts <= {lasts[5:0], last};
        a_later[4:1] <= a_later[3:0];
        b_later[4:1] <= b_later[3:0];
        index <= (lookup == 2'd1) ? x_0 - $signed(zero_a) : (lookup == 2'd2) ? y_0 - x_0 : '0;
        table_at <= table_base + ((lookup == 2'd2) ? '0 : b_later[4])
                    + A_W'($signed(index) * $signed({3'd0, table_row}));
        weight_at <= table_at;
    end
    assign x_0 = {{2{!unsigned_a && x[15]}}, x[15:0]};
    assign y_0 = {{2{!unsigned_b && y[15]}}, y[15:0]};
    assign a_address = is_rows ? rows_address : (lookup != '0) ? a : a_later[4];
    assign b_address = (lookup != '0) ? b : b_later[4];

    logic [LANES*LANES*WEIGHT_W-1:0] weights, weights_held;
    logic [LANES*18-1:0] entries, turned, table_word;
    logic [LW-1:0] turn;
    logic [LANES*X_W-1:0] narrow;
    logic [LANES*TREE_W-1:0] tree;
    always_ff @(posedge clk) begin
        turn <= table_at[LW-1:0];
        weights_held <= weights;
        table_word <= turned;
        for (int j = 0; j < LANES; j++) narrow[j*X_W +: X_W] <= x[j*16 +: X_W];
    end
    engine_turn #(.LANES(LANES), .W(18)) table_turn (.in_data(entries), .turn, .out_data(turned));

    engine_array #(.LANES(LANES), .X_W(X_W), .WEIGHT_W(WEIGHT_W)) multipliers (
        .clk, .x(narrow), .weights(weights_held), .sums(tree)
    );

    logic done;
    logic [LANES*ACC_W-1:0] sums;
    engine_lanes #(.LANES(LANES), .ACC_W(ACC_W), .TREE_W(TREE_W)) lanes (
        .clk, .rst, .array, .largest, .first_kind, .second_kind, .unsigned_a, .unsigned_b, .zero_a, .zero_b, .x, .y,
        .table_word, .valid(valids[6]), .first(firsts[6]), .last(lasts[6]), .tree, .done, .sums
    );

    // Where each result goes waits for it beside the pipeline.
    localparam int INFO_W = 2 * A_W + LW + 2;
    logic [INFO_W-1:0] place;
    logic [A_W-1:0] place_c, place_p;
    logic [LW:0] place_count;
    logic place_last, place_valid, place_ready;
    fifo #(.W(INFO_W), .DEPTH(PLACES)) places (
        .clk, .rst, .in_data({last_word && ends, count, c, p}), .in_valid(begins && last), .in_ready(place_ready),
        .out_data(place), .out_valid(place_valid), .out_ready(done)
    );
    assign {place_last, place_count, place_c, place_p} = place;

    logic [SCALE_W-1:0] scales;
    logic [LANES*16-1:0] results;
    engine_requantise #(.LANES(LANES), .ACC_W(ACC_W), .M_W(M_W)) law (
        .clk, .sums, .scales, .shift, .zero, .low, .high, .results
    );
    logic [LAW-1:0] finished, finished_last;
    logic [LAW-1:0][A_W-1:0] finished_c;
    logic [LAW-1:0][LW:0] finished_count;
    always_ff @(posedge clk) begin
        finished <= rst ? '0 : {finished[LAW-2:0], done};
        finished_last <= {finished_last[LAW-2:0], place_last};
        finished_c <= {finished_c[LAW-2:0], place_c};
        finished_count <= {finished_count[LAW-2:0], place_count};
    end
    logic result;
    assign result = finished[LAW-1];

    logic [5:0] way;
    assign on_way = way != '0;
    always_ff @(posedge clk) begin
        if (rst) way <= '0;
        else way <= way + 6'(begins && last) - 6'(result);
    end

    logic rows_write;
    logic [A_W-1:0] rows_write_address;
    logic [15:0] rows_data;
    engine_rows #(.ADDRESS_W(A_W), .COUNT_W(16)) row_unit (
        .clk, .rst, .start(state == START && is_rows), .norm(kind == NORMAL), .a(code[256 +: A_W]),
        .c(code[296 +: A_W]), .size(code[352 +: 16]), .rows(code[384 +: 16]), .epsilon(code[416 +: 64]),
        .root_bits(code[480 +: 6]), .reciprocal_bits(code[512 +: 6]), .shift(code[544 +: 6]),
        .share_bits(code[576 +: 5]), .read_address(rows_address), .x(x_0), .write(rows_write),
        .write_address(rows_write_address), .write_data(rows_data), .busy(rows_busy)
    );

    engine_data #(.LANES(LANES), .WORDS(DATA_WORDS), .ADDRESS_W(A_W)) data (
        .clk, .a_address, .a_data(x), .b_address, .b_data(y),
        .write(rows_write || (result && !leaves) || (step && enters)),
        .c_address(rows_write ? rows_write_address : result ? finished_c[LAW-1] : c),
        .c_data(rows_write ? (LANES*16)'(rows_data) : result ? results : in_data),
        .c_count(rows_write ? (LW+1)'(1) : result ? finished_count[LAW-1] : count)
    );

    // What leaves always has a place: a step is taken where the FIFO behind has room for its result.
    credits #(.DEPTH(PLACES), .TAKE(1)) leaving (
        .clk, .rst, .take(begins && last && leaves), .give(out_valid && out_ready), .room
    );
    output_fifo #(.W(LANES * 16 + 1), .DEPTH(PLACES)) left (
        .clk, .rst, .in_data({finished_last[LAW-1], results}), .in_valid(result && leaves),
        .out_data({out_last, out_data}), .out_valid, .out_ready
    );

    engine_bank #(.W(128), .WORDS(PROGRAM_WORDS)) program_bank (
        .clk, .bank, .address(at), .data(program_word), .write(load_write[0]),
        .load_address(load_address[PW-1:0]), .load_data(load_data[LOAD_W-32*PROGRAM_SLICES +: 128])
    );
    engine_bank #(.W(LANES*LANES*WEIGHT_W), .WORDS(WEIGHT_WORDS)) weight_bank (
        .clk, .bank, .address(weight_at[$clog2(WEIGHT_WORDS)-1:0]), .data(weights), .write(load_write[1]),
        .load_address(load_address[$clog2(WEIGHT_WORDS)-1:0]),
        .load_data(load_data[LOAD_W-32*WEIGHT_SLICES +: LANES*LANES*WEIGHT_W])
    );
    engine_bank #(.W(LANES*18), .WORDS(TABLE_WORDS)) table_bank (
        .clk, .bank, .address(table_at[LW +: $clog2(TABLE_WORDS)]), .data(entries), .write(load_write[2]),
        .load_address(load_address[$clog2(TABLE_WORDS)-1:0]), .load_data(load_data[LOAD_W-32*TABLE_SLICES +: LANES*18])
    );
    engine_bank #(.W(SCALE_W), .WORDS(SCALE_WORDS)) scale_bank (
        .clk, .bank, .address(place_p[$clog2(SCALE_WORDS)-1:0]), .data(scales), .write(load_write[3]),
        .load_address(load_address[$clog2(SCALE_WORDS)-1:0]), .load_data(load_data[LOAD_W-32*SCALE_SLICES +: SCALE_W])
    );

    engine_registers #(
        .LIMIT(LIMIT), .LOAD_W(LOAD_W), .PROGRAM_SLICES(PROGRAM_SLICES), .WEIGHT_SLICES(WEIGHT_SLICES),
        .TABLE_SLICES(TABLE_SLICES), .SCALE_SLICES(SCALE_SLICES)
    ) control (
        .clk, .rst, .sample_in(step && enters && ends && last_word), .sample_out(out_valid && out_ready && out_last),
        .in_waits(in_valid && !in_ready), .out_waits(out_valid && !out_ready),
        .misplaced(step && enters && in_last != (ends && last_word)), .moved(state != WAITS && (step || rows_busy)),
        .array_works(begins && array), .switched, .pending, .bank, .loaded, .load_write, .load_address, .load_data,
        .s_axi_awaddr, .s_axi_awvalid, .s_axi_awready, .s_axi_wdata, .s_axi_wvalid, .s_axi_wready, .s_axi_bresp,
        .s_axi_bvalid, .s_axi_bready, .s_axi_araddr, .s_axi_arvalid, .s_axi_arready, .s_axi_rdata, .s_axi_rresp,
        .s_axi_rvalid, .s_axi_rready
    );

`ifdef SIMULATION
    always_ff @(posedge clk) begin
        if (!rst) assert (place_ready || !(begins && last)) else $error("a result without a place");
        if (!rst) assert (place_valid || !done) else $error("a result that was not begun");
    end
`endif
    logic unused;
    assign unused = &{
        1'b0, code, full, tail, place_valid, place_ready, load_address, load_data, place_p, weight_at, table_at, x
    };
endmodule
