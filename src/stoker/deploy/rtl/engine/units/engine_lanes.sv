// The operands of each lane, their product, and the sums that the inner loops of a nest add up, lane by lane or from
// the array. `sums` is a finished word while `done` is set.
module engine_lanes #(
    parameter int LANES = 8,
    parameter int ACC_W = 35,
    parameter int TREE_W = 20
) (
    input  logic                      clk,
    input  logic                      rst,
    input  logic                      array,
    input  logic                      largest,
    input  logic [1:0]                first_kind,     // own, lane 0, one
    input  logic [1:0]                second_kind,    // one, zero, data, table
    input  logic                      unsigned_a,
    input  logic                      unsigned_b,
    input  logic [17:0]               zero_a,
    input  logic [17:0]               zero_b,
    input  logic [LANES*16-1:0]       x,
    input  logic [LANES*16-1:0]       y,
    input  logic [LANES*18-1:0]       table_word,
    input  logic                      valid,          // with x, y and the table's word
    input  logic                      first,
    input  logic                      last,
    input  logic [LANES*TREE_W-1:0]   tree,           // the array's sums, 2 + log2(LANES) cycles after x
    output logic                      done,
    output logic [LANES*ACC_W-1:0]    sums
);
    localparam int DEPTH = 2 + $clog2(LANES);         // from x to the array's sums; 2 to the products of lanes
    logic [DEPTH-1:0] valids, firsts, lasts;
    logic take, begins, ends;

    assign take = array ? valids[DEPTH-1] : valids[1];
    assign begins = array ? firsts[DEPTH-1] : firsts[1];
    assign ends = array ? lasts[DEPTH-1] : lasts[1];
    always_ff @(posedge clk) begin
        valids <= rst ? '0 : {valids[DEPTH-2:0], valid};
        firsts <= {firsts[DEPTH-2:0], first};
        lasts <= {lasts[DEPTH-2:0], last};
        done <= !rst && take && ends;
    end

    logic signed [17:0] x_first;
    assign x_first = {{2{!unsigned_a && x[15]}}, x[15:0]};

    generate
        for (genvar i = 0; i < LANES; i++) begin : lane
            logic signed [17:0] own, other, left, right;
            logic signed [ACC_W-1:0] product, term, acc;
            assign own = {{2{!unsigned_a && x[i*16+15]}}, x[i*16 +: 16]};
            assign other = {{2{!unsigned_b && y[i*16+15]}}, y[i*16 +: 16]};
            assign term = array ? ACC_W'($signed(tree[i*TREE_W +: TREE_W])) : product;
            always_ff @(posedge clk) begin
                case (first_kind)
                    2'd0: left <= own - $signed(zero_a);
                    2'd1: left <= x_first - $signed(zero_a);
                    default: left <= 18'sd1;
                endcase
                case (second_kind)
                    2'd0: right <= 18'sd1;
                    2'd1: right <= 18'sd0;
                    2'd2: right <= other - $signed(zero_b);
                    default: right <= $signed(table_word[i*18 +: 18]);
                endcase
                product <= largest ? ACC_W'(left) : ACC_W'(left) * ACC_W'(right);
                if (take) begin
                    if (begins) acc <= term;
                    else if (!largest) acc <= acc + term;
                    else if (term > acc) acc <= term;
                end
            end
            assign sums[i*ACC_W +: ACC_W] = acc;
        end
    endgenerate
endmodule
